package embedded

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/capability"
)

// container is one container. Runtime.mu guards what can change.
type container struct {
	Container
	sandbox           *sandbox
	name              string // reserved
	item              *containerItem
	started, finished int64
	exit              *Exit
	proc              Process
	console           *containerStreams
	resources         *v1.LinuxContainerResources
	mounts            []*v1.Mount // for the status

	ready      bool               // created: it can be started and is listed
	removal    chan struct{}      // closed when the removal in progress has ended; nil: there is none
	launch     context.CancelFunc // cancels a start in progress
	early      syscall.Signal     // to be sent after a start in progress
	terminated bool               // the stop signal was sent
	done       chan struct{}      // closed when it has exited
}

func (c *container) state() v1.ContainerState { return c.item.GetState() }

// alive reports whether the container runs or is being started.
func (c *container) alive() bool {
	return c.state() == v1.ContainerState_CONTAINER_RUNNING || c.launch != nil
}

// CreateContainer implements the CRI.
func (r *Runtime) CreateContainer(ctx context.Context, req *v1.CreateContainerRequest) (*v1.CreateContainerResponse, error) {
	c, err := r.reserveContainer(req)
	if err != nil {
		return nil, err
	}
	err = r.create(ctx, &c.Container)
	if err != nil {
		r.mu.Lock()
		r.forget(c)
		r.mu.Unlock()
		return nil, statusError("create container "+c.name, err)
	}

	r.mu.Lock()
	if c.sandbox.ready() && !r.closed {
		c.ready = true
		r.containers[c.ID] = c
		r.changed()
		r.pods.containers.add(c.item.GetLabels(), c)
		r.emit(c.sandbox, c.ID, v1.ContainerEventType_CONTAINER_CREATED_EVENT)
		r.mu.Unlock()
		return &v1.CreateContainerResponse{ContainerId: c.ID}, nil
	}
	r.forget(c)
	r.mu.Unlock()
	r.remove(&c.Container)
	return nil, status.Errorf(codes.FailedPrecondition, "create container %s: sandbox %s was stopped", c.name, c.SandboxID)
}

// reserveContainer validates the request and reserves the container's name.
func (r *Runtime) reserveContainer(req *v1.CreateContainerRequest) (*container, error) {
	cfg := req.GetConfig()
	if err := checkContainer(cfg); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed()
	}
	s, ok := lookup(r.sandboxes, req.GetPodSandboxId())
	if !ok {
		return nil, noSandbox(req.GetPodSandboxId())
	}
	if !s.ready() {
		return nil, status.Errorf(codes.FailedPrecondition, "create container: sandbox %s is not ready", s.id)
	}
	image, ok := r.images.find(cfg.GetImage().GetImage())
	if !ok {
		return nil, status.Errorf(codes.NotFound, "create container: image %q: not found", cfg.GetImage().GetImage())
	}
	m := cfg.GetMetadata()
	c := &container{
		Container: Container{ID: newID(), SandboxID: s.id, Pod: s.config, Config: cfg, Image: image},
		sandbox:   s,
		name:      fmt.Sprintf("%s_%s_%d", m.GetName(), s.name, m.GetAttempt()),
		resources: cfg.GetLinux().GetResources(),
		mounts:    r.images.statusMounts(cfg.GetMounts()),
		done:      make(chan struct{}),
	}
	if err := r.reserve("container", c.name, c.ID); err != nil {
		return nil, err
	}
	c.item = newContainerItem(&v1.Container{
		Id: c.ID, PodSandboxId: s.id, Metadata: m, Image: cfg.GetImage(), ImageRef: image.ref(), ImageId: image.ID,
		State: v1.ContainerState_CONTAINER_CREATED, CreatedAt: time.Now().UnixNano(),
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(),
	})
	s.containers = append(s.containers, c)
	return c, nil
}

// forget removes c from all indexes. The caller holds mu.
func (r *Runtime) forget(c *container) {
	delete(r.containers, c.ID)
	r.changed()
	r.pods.containers.drop(c.item.GetLabels(), c)
	delete(r.names, c.name)
	c.sandbox.containers = slices.DeleteFunc(c.sandbox.containers, func(o *container) bool { return o == c })
}

// StartContainer implements the CRI.
func (r *Runtime) StartContainer(ctx context.Context, req *v1.StartContainerRequest) (*v1.StartContainerResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := r.beginStart(req.GetContainerId(), cancel)
	if err != nil {
		return nil, err
	}
	proc, err := r.start(ctx, &c.Container, c.console.io(), func(e Exit) { r.exited(c, e) })
	if err != nil {
		c.console.close()
		r.mu.Lock()
		defer r.mu.Unlock()
		c.launch = nil
		r.finish(c, Exit{Code: 128, Reason: ReasonStartError, Message: err.Error()})
		return nil, statusError("start container "+c.ID, err)
	}
	if sig := r.started(c, proc); sig != 0 { // it was stopped while it started
		if err := proc.Signal(sig); err != nil {
			return nil, statusError("stop container "+c.ID, err)
		}
	}
	return &v1.StartContainerResponse{}, nil
}

// started records that c runs, or ran, and returns the signal that came before.
func (r *Runtime) started(c *container, proc Process) syscall.Signal {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.launch = nil
	c.proc = proc
	c.started = time.Now().UnixNano()
	c.item = withContainerState(c.item, v1.ContainerState_CONTAINER_RUNNING)
	r.changed()
	r.emit(c.sandbox, c.ID, v1.ContainerEventType_CONTAINER_STARTED_EVENT)
	if c.exit != nil { // it exited before its start was recorded
		r.finish(c, *c.exit)
		return 0
	}
	return c.early
}

// beginStart marks the container as being started.
func (r *Runtime) beginStart(id string, cancel context.CancelFunc) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := lookup(r.containers, id)
	switch {
	case r.closed:
		return nil, errClosed()
	case !ok:
		return nil, noContainer(id)
	case c.removal != nil:
		return nil, status.Errorf(codes.FailedPrecondition, "start container %s: it is being removed", c.ID)
	case c.launch != nil:
		return nil, status.Errorf(codes.FailedPrecondition, "start container %s: it is being started", c.ID)
	case c.state() != v1.ContainerState_CONTAINER_CREATED:
		return nil, status.Errorf(codes.FailedPrecondition, "start container %s: it is %s, not created", c.ID, stateName(c.state()))
	case !c.sandbox.ready():
		return nil, status.Errorf(codes.FailedPrecondition, "start container %s: sandbox %s is not ready", c.ID, c.SandboxID)
	}
	c.console = newContainerStreams(c.logPath(), c.Config)
	c.launch = cancel
	return c, nil
}

// exited records the exit of a container. The executor calls it once for each started
// container.
func (r *Runtime) exited(c *container, e Exit) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	c.console.close() // first: a client that observes the exit reads the complete log
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case c.launch != nil: // StartContainer finishes it after it has recorded the start
		c.exit = &e
	case c.finished == 0: // else the executor has broken its promise: it exited before, or was never started
		r.finish(c, e)
	}
}

// finish moves c to exited. The caller holds mu.
func (r *Runtime) finish(c *container, e Exit) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	if e.Reason == "" {
		e.Reason = ReasonCompleted
		if e.Code != 0 {
			e.Reason = ReasonError
		}
	}
	// What an executor passes on may be output of a program, and gRPC sends no status with that.
	e.Reason, e.Message = strings.ToValidUTF8(e.Reason, "\uFFFD"), strings.ToValidUTF8(e.Message, "\uFFFD")
	c.exit, c.finished = &e, e.At.UnixNano()
	if c.started == 0 { // it never ran
		c.started = c.finished
	}
	// A container may exit before its start is recorded.
	c.finished = max(c.finished, c.started)
	c.item = withContainerState(c.item, v1.ContainerState_CONTAINER_EXITED)
	r.changed()
	r.emit(c.sandbox, c.ID, v1.ContainerEventType_CONTAINER_STOPPED_EVENT)
	c.proc = nil
	close(c.done)
}

// kill sends sig. SIGKILL cancels a start in progress; if it succeeds nevertheless, the
// process gets sig right after.
func (r *Runtime) kill(c *container, sig syscall.Signal) error {
	r.mu.Lock()
	proc := c.proc
	if c.launch != nil {
		if sig == syscall.SIGKILL {
			c.launch()
		}
		if c.early != syscall.SIGKILL {
			c.early = sig
		}
		proc = nil
	}
	r.mu.Unlock()
	if proc == nil {
		return nil
	}
	return r.signal(c, proc, sig)
}

// StopContainer implements the CRI: the stop signal, then SIGKILL after the timeout. A
// container that does not run, or does not exist, is stopped.
func (r *Runtime) StopContainer(ctx context.Context, req *v1.StopContainerRequest) (*v1.StopContainerResponse, error) {
	r.mu.Lock()
	c, ok, err := lookupIfAny(r.containers, "container", req.GetContainerId())
	if !ok || !c.alive() {
		r.mu.Unlock()
		return &v1.StopContainerResponse{}, err
	}
	signaled := c.terminated
	c.terminated = true
	r.mu.Unlock()
	const endless = math.MaxInt64 / int64(time.Second) // what fits
	timeout := time.Duration(min(max(req.GetTimeout(), 0), endless)) * time.Second
	if err := r.stop(ctx, c, timeout, signaled); err != nil {
		return nil, statusError("stop container "+c.ID, err)
	}
	return &v1.StopContainerResponse{}, nil
}

// stop stops c. The stop signal is sent once, however many calls wait; each call has
// its own timeout, so that a later one can shorten the grace period.
func (r *Runtime) stop(ctx context.Context, c *container, timeout time.Duration, signaled bool) error {
	if timeout > 0 {
		if !signaled {
			if err := r.kill(c, stopSignal(c)); err != nil {
				return err
			}
		}
		tctx, cancel := context.WithTimeout(ctx, timeout)
		err := wait(tctx, c.done)
		cancel()
		if err == nil {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if err := r.kill(c, syscall.SIGKILL); err != nil {
		return err
	}
	return wait(ctx, c.done)
}

// ReopenContainerLog implements the CRI.
func (r *Runtime) ReopenContainerLog(_ context.Context, req *v1.ReopenContainerLogRequest) (*v1.ReopenContainerLogResponse, error) {
	r.mu.Lock()
	c, err := r.running(req.GetContainerId())
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := c.console.reopen(); err != nil {
		return nil, statusError("reopen log of container "+c.ID, err)
	}
	return &v1.ReopenContainerLogResponse{}, nil
}

// UpdateContainerResources implements the CRI.
func (r *Runtime) UpdateContainerResources(_ context.Context, req *v1.UpdateContainerResourcesRequest) (*v1.UpdateContainerResourcesResponse, error) {
	r.mu.Lock()
	c, ok := lookup(r.containers, req.GetContainerId())
	if !ok {
		r.mu.Unlock()
		return nil, noContainer(req.GetContainerId())
	}
	proc, exited := c.proc, c.state() == v1.ContainerState_CONTAINER_EXITED
	r.mu.Unlock()
	if exited {
		return nil, status.Errorf(codes.FailedPrecondition, "update container %s: it has exited", c.ID)
	}
	if u, can := capability.Of[ResourceUpdater](proc); can {
		if err := u.Update(req.GetLinux()); err != nil {
			return nil, statusError("update container "+c.ID, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.resources = mergeResources(c.resources, req.GetLinux())
	return &v1.UpdateContainerResourcesResponse{}, nil
}

// running finds a container that runs. The caller holds mu.
func (r *Runtime) running(id string) (*container, error) {
	c, ok := lookup(r.containers, id)
	if !ok {
		return nil, noContainer(id)
	}
	if c.state() != v1.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.FailedPrecondition, "container %s is %s, not running", c.ID, stateName(c.state()))
	}
	return c, nil
}

func noContainer(id string) error {
	return status.Errorf(codes.NotFound, "container %q: not found", id)
}
