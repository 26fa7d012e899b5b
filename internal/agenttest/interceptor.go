package agenttest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// interceptor is the connection of one agent process. It records the calls that change
// something, hits breakpoints, and fails all calls after its process was killed.
type interceptor struct {
	h    *Harness
	conn grpc.ClientConnInterface

	ctx  context.Context // ends when the process is killed
	kill context.CancelFunc

	mu   sync.Mutex // guards dead
	dead bool
}

func newInterceptor(h *Harness, conn grpc.ClientConnInterface) *interceptor {
	ctx, kill := context.WithCancel(context.Background())
	return &interceptor{h: h, conn: conn, ctx: ctx, kill: kill}
}

// die makes every call fail from now on, including those under way, because the process
// that makes them was killed.
func (i *interceptor) die() {
	i.mu.Lock()
	i.dead = true
	i.mu.Unlock()
	i.kill()
}

func (i *interceptor) isDead() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.dead
}

var errDead = status.Error(codes.Canceled, "the agent was killed")

// Invoke implements grpc.ClientConnInterface.
func (i *interceptor) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	if i.isDead() {
		return errDead
	}
	rpc := method[strings.LastIndex(method, "/")+1:]
	pod, text, group := i.h.describe(rpc, req)
	if i.h.isDown() || i.h.isDeleted(req) {
		text = "" // it does not reach the runtime, or changes nothing
	}
	if text == "" {
		return i.call(ctx, method, req, resp, opts...)
	}
	i.h.hitBreakpoints(rpc, Before, pod)
	if i.isDead() {
		return errDead
	}
	kind := lineCall
	if rpc == "PullImage" {
		kind = linePull
	}
	i.h.Trace.add(pod, kind, group, text)
	i.h.checkStart(rpc, req)
	i.h.recordStop(req)
	err := i.call(ctx, method, req, resp, opts...)
	if err == nil {
		i.h.learn(req, resp)
	} else if !i.isDead() {
		i.h.Trace.add(pod, kind, group, fmt.Sprintf("%s failed: %s", rpc, status.Code(err)))
	}
	i.h.hitBreakpoints(rpc, After, pod)
	if i.isDead() {
		return errDead
	}
	return err
}

// call makes a call that ends when the process is killed.
func (i *interceptor) call(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(i.ctx, cancel)()
	i.h.delayList(ctx, req)
	return i.conn.Invoke(ctx, method, req, resp, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (i *interceptor) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if i.isDead() {
		return nil, errDead
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(i.ctx, cancel)
	if strings.HasSuffix(method, "/StreamPodSandboxes") {
		i.h.delayList(ctx, &v1.ListPodSandboxRequest{})
	}
	s, err := i.conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		cancel()
	}
	return s, err
}

// delayList delays a list of all sandboxes. Inspections of one pod are not delayed.
func (h *Harness) delayList(ctx context.Context, req any) {
	q, ok := req.(*v1.ListPodSandboxRequest)
	h.mu.Lock()
	d := h.listDelay
	h.mu.Unlock()
	if !ok || d == 0 || q.GetFilter().GetId() != "" || len(q.GetFilter().GetLabelSelector()) > 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
