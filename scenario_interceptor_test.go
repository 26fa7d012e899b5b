package agent_test

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// criInterceptor is the connection of one agent process. It records the calls that
// change something, hits breakpoints, and fails all calls after its process was killed.
type criInterceptor struct {
	w  *harness
	cc grpc.ClientConnInterface

	mu   sync.Mutex // guards dead
	dead bool
	ctx  context.Context
	kill context.CancelFunc
}

func newInterceptor(w *harness, cc grpc.ClientConnInterface) *criInterceptor {
	ctx, kill := context.WithCancel(context.Background())
	return &criInterceptor{w: w, cc: cc, ctx: ctx, kill: kill}
}

// die makes every call fail from now on, including those under way, because the process
// that makes them was killed.
func (t *criInterceptor) die() {
	t.mu.Lock()
	t.dead = true
	t.mu.Unlock()
	t.kill()
}

func (t *criInterceptor) isDead() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dead
}

var errDead = status.Error(codes.Canceled, "the agent was killed")

// Invoke implements grpc.ClientConnInterface.
func (t *criInterceptor) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	if t.isDead() {
		return errDead
	}
	rpc := method[strings.LastIndex(method, "/")+1:]
	pod, text, side := t.w.describe(rpc, req)
	if t.w.isDown() || t.w.isDeleted(req) {
		text = "" // it does not reach the runtime, or changes nothing
	}
	if text != "" {
		t.w.hitBreakpoint(rpc, "before", pod)
		if t.isDead() {
			return errDead
		}
		kind := lineCall
		if rpc == "PullImage" {
			kind = linePull
		}
		t.w.trace.add(pod, kind, side, text)
		t.w.checkStart(rpc, req)
		t.w.noteStop(req)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	t.w.delayList(ctx, req)
	err := t.cc.Invoke(ctx, method, req, resp, opts...)
	if text == "" {
		return err
	}
	if err == nil {
		t.w.learn(req, resp)
	} else if !t.isDead() {
		kind := lineCall
		if rpc == "PullImage" {
			kind = linePull
		}
		t.w.trace.add(pod, kind, side, fmt.Sprintf("%s failed: %s", strings.Fields(text)[0], status.Code(err)))
	}
	t.w.hitBreakpoint(rpc, "after", pod)
	if t.isDead() {
		return errDead
	}
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (t *criInterceptor) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if t.isDead() {
		return nil, errDead
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(t.ctx, cancel)
	if strings.HasSuffix(method, "/StreamPodSandboxes") {
		t.w.delayList(ctx, &v1.ListPodSandboxRequest{})
	}
	s, err := t.cc.NewStream(ctx, desc, method, opts...)
	if err != nil {
		cancel()
	}
	return s, err
}

// runtimeObject is a sandbox or a container.
type runtimeObject struct {
	pod  string // label
	uid  types.UID
	name string // container#attempt, or sandbox#attempt
}

// runtimeObjects are the sandboxes and containers by id.
type runtimeObjects struct {
	mu sync.Mutex
	by map[string]runtimeObject
}

func (t *runtimeObjects) get(id string) (runtimeObject, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x, ok := t.by[id]
	return x, ok
}

func (t *runtimeObjects) put(id string, x runtimeObject) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.by[id] = x
}

// object returns the sandbox or container with an id. One whose creation got no response
// is found in the runtime.
func (w *harness) object(id string) runtimeObject {
	x, ok := w.objects.get(id)
	if ok {
		return x
	}
	ctx := context.Background()
	if r, err := w.inside.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: id}); err == nil {
		m := r.GetStatus().GetMetadata()
		x = runtimeObject{w.trace.label(types.UID(m.GetUid()), m.GetName()), types.UID(m.GetUid()), fmt.Sprintf("sandbox#%d", m.GetAttempt())}
	} else if r, err := w.inside.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: id}); err == nil {
		m, l := r.GetStatus().GetMetadata(), r.GetStatus().GetLabels()
		uid := types.UID(l["io.kubernetes.pod.uid"])
		x = runtimeObject{w.trace.label(uid, l["io.kubernetes.pod.name"]), uid, fmt.Sprintf("%s#%d", m.GetName(), m.GetAttempt())}
	} else {
		return runtimeObject{pod: "?", name: "?"}
	}
	w.objects.put(id, x)
	return x
}

// isDeleted reports whether a call removes an object that does not exist any more.
func (w *harness) isDeleted(req any) bool {
	ctx := context.Background()
	var err error
	switch q := req.(type) {
	case *v1.RemovePodSandboxRequest:
		_, err = w.inside.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: q.GetPodSandboxId()})
	case *v1.RemoveContainerRequest:
		_, err = w.inside.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: q.GetContainerId()})
	}
	return err != nil
}

// learn records the object that a call created.
func (w *harness) learn(req, resp any) {
	switch q := req.(type) {
	case *v1.RunPodSandboxRequest:
		m := q.GetConfig().GetMetadata()
		if r, ok := resp.(*v1.RunPodSandboxResponse); ok {
			uid := types.UID(m.GetUid())
			w.objects.put(r.GetPodSandboxId(), runtimeObject{w.trace.label(uid, m.GetName()), uid, fmt.Sprintf("sandbox#%d", m.GetAttempt())})
		}
	case *v1.CreateContainerRequest:
		m := q.GetConfig().GetMetadata()
		if r, ok := resp.(*v1.CreateContainerResponse); ok {
			of := w.object(q.GetPodSandboxId())
			w.objects.put(r.GetContainerId(), runtimeObject{of.pod, of.uid, fmt.Sprintf("%s#%d", m.GetName(), m.GetAttempt())})
		}
	}
}

// describe returns the text of a call that changes something, and none for others.
func (w *harness) describe(rpc string, req any) (pod, text, side string) {
	switch q := req.(type) {
	case *v1.RunPodSandboxRequest:
		m := q.GetConfig().GetMetadata()
		return w.trace.label(types.UID(m.GetUid()), m.GetName()), fmt.Sprintf("%s sandbox#%d", rpc, m.GetAttempt()), ""
	case *v1.PullImageRequest:
		return "", fmt.Sprintf("%s %s", rpc, q.GetImage().GetImage()), rpc // any of the pods that need it
	case *v1.CreateContainerRequest:
		m := q.GetConfig().GetMetadata()
		return w.object(q.GetPodSandboxId()).pod, fmt.Sprintf("%s %s#%d", rpc, m.GetName(), m.GetAttempt()), ""
	case *v1.StopContainerRequest:
		x := w.object(q.GetContainerId())
		return x.pod, fmt.Sprintf("%s %s within %ds", rpc, x.name, q.GetTimeout()), rpc
	case *v1.StartContainerRequest, *v1.RemoveContainerRequest, *v1.UpdateContainerResourcesRequest, *v1.ReopenContainerLogRequest:
		x := w.object(q.(interface{ GetContainerId() string }).GetContainerId())
		return x.pod, rpc + " " + x.name, sideOf(rpc)
	case *v1.StopPodSandboxRequest, *v1.RemovePodSandboxRequest:
		x := w.object(q.(interface{ GetPodSandboxId() string }).GetPodSandboxId())
		return x.pod, rpc + " " + x.name, sideOf(rpc)
	case *v1.RemoveImageRequest:
		return "", rpc + " " + q.GetImage().GetImage(), rpc
	}
	return "", "", ""
}

func sideOf(rpc string) string {
	if rpc == "StartContainer" {
		return ""
	}
	return rpc
}
