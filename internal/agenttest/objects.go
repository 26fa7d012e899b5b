package agenttest

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// runtimeObject is a sandbox or a container.
type runtimeObject struct {
	pod  string // label
	uid  types.UID
	name string // container#attempt, or sandbox#attempt
}

// runtimeObjects are the sandboxes and containers by id.
type runtimeObjects struct {
	mu   sync.Mutex // guards byID
	byID map[string]runtimeObject
}

func (r *runtimeObjects) get(id string) (runtimeObject, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.byID[id]
	return o, ok
}

func (r *runtimeObjects) put(id string, o runtimeObject) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = map[string]runtimeObject{}
	}
	r.byID[id] = o
}

// ContainerName returns the name and attempt of the container with an id, such as main#1.
func (h *Harness) ContainerName(id string) string { return h.object(id).name }

// object returns the sandbox or container with an id. One whose creation got no response
// is found in the runtime.
func (h *Harness) object(id string) runtimeObject {
	o, ok := h.objects.get(id)
	if ok {
		return o
	}
	ctx := context.Background()
	if r, err := h.inside.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: id}); err == nil {
		o = h.sandbox(r.GetStatus().GetMetadata())
	} else if r, err := h.inside.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: id}); err == nil {
		labels := r.GetStatus().GetLabels()
		uid := types.UID(labels[runtime.LabelPodUID])
		o = container(h.Trace.Label(uid, labels[runtime.LabelPodName]), uid, r.GetStatus().GetMetadata())
	} else {
		return runtimeObject{pod: "?", name: "?"}
	}
	h.objects.put(id, o)
	return o
}

func (h *Harness) sandbox(m *v1.PodSandboxMetadata) runtimeObject {
	uid := types.UID(m.GetUid())
	return runtimeObject{h.Trace.Label(uid, m.GetName()), uid, fmt.Sprintf("sandbox#%d", m.GetAttempt())}
}

func container(pod string, uid types.UID, m *v1.ContainerMetadata) runtimeObject {
	return runtimeObject{pod, uid, fmt.Sprintf("%s#%d", m.GetName(), m.GetAttempt())}
}

// isDeleted reports whether a call removes an object that does not exist any more.
func (h *Harness) isDeleted(req any) bool {
	ctx := context.Background()
	var err error
	switch q := req.(type) {
	case *v1.RemovePodSandboxRequest:
		_, err = h.inside.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: q.GetPodSandboxId()})
	case *v1.RemoveContainerRequest:
		_, err = h.inside.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: q.GetContainerId()})
	}
	return err != nil
}

// learn records the object that a call created.
func (h *Harness) learn(req, resp any) {
	switch q := req.(type) {
	case *v1.RunPodSandboxRequest:
		if r, ok := resp.(*v1.RunPodSandboxResponse); ok {
			h.objects.put(r.GetPodSandboxId(), h.sandbox(q.GetConfig().GetMetadata()))
		}
	case *v1.CreateContainerRequest:
		if r, ok := resp.(*v1.CreateContainerResponse); ok {
			of := h.object(q.GetPodSandboxId())
			h.objects.put(r.GetContainerId(), container(of.pod, of.uid, q.GetConfig().GetMetadata()))
		}
	}
}

// describe returns the text of a call that changes something, and none for others. Calls
// with the same group are concurrent.
func (h *Harness) describe(rpc string, req any) (pod, text, group string) {
	switch q := req.(type) {
	case *v1.RunPodSandboxRequest:
		o := h.sandbox(q.GetConfig().GetMetadata())
		return o.pod, rpc + " " + o.name, ""
	case *v1.PullImageRequest:
		return "", rpc + " " + q.GetImage().GetImage(), rpc // any of the pods that need it
	case *v1.CreateContainerRequest:
		of := h.object(q.GetPodSandboxId())
		return of.pod, rpc + " " + container(of.pod, of.uid, q.GetConfig().GetMetadata()).name, ""
	case *v1.StopContainerRequest:
		o := h.object(q.GetContainerId())
		return o.pod, fmt.Sprintf("%s %s within %ds", rpc, o.name, q.GetTimeout()), rpc
	case *v1.StartContainerRequest:
		o := h.object(q.GetContainerId())
		return o.pod, rpc + " " + o.name, ""
	case *v1.RemoveContainerRequest, *v1.UpdateContainerResourcesRequest, *v1.ReopenContainerLogRequest:
		o := h.object(q.(interface{ GetContainerId() string }).GetContainerId())
		return o.pod, rpc + " " + o.name, rpc
	case *v1.StopPodSandboxRequest, *v1.RemovePodSandboxRequest, *v1.UpdatePodSandboxResourcesRequest:
		o := h.object(q.(interface{ GetPodSandboxId() string }).GetPodSandboxId())
		return o.pod, rpc + " " + o.name, rpc
	case *v1.RemoveImageRequest:
		return "", rpc + " " + q.GetImage().GetImage(), rpc
	}
	return "", "", ""
}
