package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/capability"
)

// sandbox is one pod sandbox. Runtime.mu guards what can change.
type sandbox struct {
	id         string
	name       string // reserved
	config     *v1.PodSandboxConfig
	item       *podItem
	ips        []string
	pooled     bool // ips are from the pool
	containers []*container
	ports      *hostPorts
	resources  *v1.LinuxContainerResources
	stopped    bool // a stop has come to its end
}

func (s *sandbox) ready() bool { return s.item.GetState() == v1.PodSandboxState_SANDBOX_READY }

// hostNetwork reports whether the pod shares the node's network.
func hostNetwork(c *v1.PodSandboxConfig) bool {
	return c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == v1.NamespaceMode_NODE
}

// sandboxName returns the name that is unique at any time.
func sandboxName(m *v1.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// RunPodSandbox implements the CRI.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *v1.RunPodSandboxRequest) (*v1.RunPodSandboxResponse, error) {
	if err := r.checkSandbox(req); err != nil {
		return nil, err
	}
	cfg := req.GetConfig()
	s := &sandbox{id: newID(), name: sandboxName(cfg.GetMetadata()), config: cfg}

	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, errClosed()
	}
	err := r.reserve("sandbox", s.name, s.id)
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := r.prepare(ctx, s); err != nil {
		r.mu.Lock()
		delete(r.names, s.name)
		r.mu.Unlock()
		return nil, statusError("run sandbox "+s.name, err)
	}

	r.mu.Lock()
	err = r.address(s)
	if r.closed { // Close has not stopped it
		err = errClosed()
	}
	if err != nil {
		delete(r.names, s.name)
		r.mu.Unlock()
		s.ports.close()
		return nil, err
	}
	defer r.mu.Unlock()
	s.item = newPodItem(&v1.PodSandbox{
		Id: s.id, Metadata: cfg.GetMetadata(), State: v1.PodSandboxState_SANDBOX_READY, CreatedAt: time.Now().UnixNano(),
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(), RuntimeHandler: req.GetRuntimeHandler(),
	})
	s.resources = cfg.GetLinux().GetResources()
	r.sandboxes[s.id] = s
	r.changed()
	r.pods.sandboxes.add(s.item.GetLabels(), s)
	r.emit(s, s.id, v1.ContainerEventType_CONTAINER_CREATED_EVENT)
	r.emit(s, s.id, v1.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &v1.RunPodSandboxResponse{PodSandboxId: s.id}, nil
}

func (r *Runtime) checkSandbox(req *v1.RunPodSandboxRequest) error {
	m := req.GetConfig().GetMetadata()
	sc := req.GetConfig().GetLinux().GetSecurityContext()
	switch {
	case m == nil || m.GetName() == "":
		return status.Error(codes.InvalidArgument, "run sandbox: config.metadata.name is empty")
	case req.GetRuntimeHandler() != "" && !slices.Contains(r.cfg.Handlers, req.GetRuntimeHandler()):
		return status.Errorf(codes.InvalidArgument, "run sandbox: runtime handler %q not found", req.GetRuntimeHandler())
	case sc.GetRunAsGroup() != nil && sc.GetRunAsUser() == nil:
		return status.Error(codes.InvalidArgument, "run sandbox: run_as_group without run_as_user")
	}
	return nil
}

// prepare calls the SandboxPreparer, opens the host ports and calls the PodIPAllocator, as far as
// there is one.
func (r *Runtime) prepare(ctx context.Context, s *sandbox) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p, ok := capability.Of[SandboxPreparer](r.cfg.Executor); ok {
		if err := r.prepareSandbox(ctx, p, s); err != nil {
			return err
		}
	}
	if s.ports, err = r.openPorts(ctx, s); err != nil {
		return err
	}
	if a, ok := capability.Of[PodIPAllocator](r.cfg.Executor); ok && !hostNetwork(s.config) {
		if s.ips, err = r.podIPs(a, s); err != nil {
			s.ports.close()
		}
	}
	return err
}

// address allocates the address of s, unless the Executor does. The caller holds mu.
func (r *Runtime) address(s *sandbox) error {
	if _, allocates := capability.Of[PodIPAllocator](r.cfg.Executor); allocates || hostNetwork(s.config) {
		return nil
	}
	ip, ok := r.ips.take()
	if !ok {
		return status.Errorf(codes.ResourceExhausted, "run sandbox %s: no free address in %s", s.name, r.cfg.PodCIDR)
	}
	s.ips, s.pooled = []string{ip}, true
	return nil
}

// StopPodSandbox implements the CRI. Stopping an unknown sandbox is not an error.
func (r *Runtime) StopPodSandbox(ctx context.Context, req *v1.StopPodSandboxRequest) (*v1.StopPodSandboxResponse, error) {
	r.mu.Lock()
	s, ok, err := lookupIfAny(r.sandboxes, "sandbox", req.GetPodSandboxId())
	r.mu.Unlock()
	if !ok {
		return &v1.StopPodSandboxResponse{}, err
	}
	if err := r.stopSandbox(ctx, s); err != nil {
		return nil, statusError("stop sandbox "+s.id, err)
	}
	return &v1.StopPodSandboxResponse{}, nil
}

// stopSandbox kills the containers of s and releases its addresses. No container can be
// created or started in s from its beginning on.
func (r *Runtime) stopSandbox(ctx context.Context, s *sandbox) error {
	r.mu.Lock()
	if s.ready() {
		s.item = withSandboxState(s.item, v1.PodSandboxState_SANDBOX_NOTREADY)
		r.changed()
	}
	live := make([]*container, 0, len(s.containers))
	for _, c := range s.containers {
		if c.alive() {
			live = append(live, c)
		}
	}
	r.mu.Unlock()

	var errs []error
	for _, c := range live {
		if err := r.kill(c, syscall.SIGKILL); err != nil {
			errs = append(errs, fmt.Errorf("kill container %s: %w", c.ID, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, c := range live {
		if err := wait(ctx, c.done); err != nil {
			return fmt.Errorf("wait for container %s: %w", c.ID, err)
		}
	}
	r.mu.Lock()
	ports := s.ports
	s.ports = nil
	r.mu.Unlock()
	ports.close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.pooled {
		r.ips.put(s.ips[0])
	}
	s.ips, s.pooled = nil, false
	if !s.stopped { // not a matter of the call that began it, whose caller may have given up
		s.stopped = true
		r.emit(s, s.id, v1.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return nil
}

// RemovePodSandbox implements the CRI. Removing an unknown sandbox is not an error.
func (r *Runtime) RemovePodSandbox(ctx context.Context, req *v1.RemovePodSandboxRequest) (*v1.RemovePodSandboxResponse, error) {
	r.mu.Lock()
	s, ok, err := lookupIfAny(r.sandboxes, "sandbox", req.GetPodSandboxId())
	r.mu.Unlock()
	if !ok {
		return &v1.RemovePodSandboxResponse{}, err
	}
	if err := r.stopSandbox(ctx, s); err != nil {
		return nil, statusError("remove sandbox "+s.id, err)
	}
	r.mu.Lock()
	containers := slices.Clone(s.containers)
	r.mu.Unlock()
	for _, c := range containers {
		if err := r.removeContainer(ctx, c); err != nil {
			return nil, statusError("remove sandbox "+s.id, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, there := r.sandboxes[s.id]; there {
		delete(r.sandboxes, s.id)
		r.changed()
		r.pods.sandboxes.drop(s.item.GetLabels(), s)
		delete(r.names, s.name)
		r.emit(s, s.id, v1.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return &v1.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus implements the CRI.
func (r *Runtime) PodSandboxStatus(_ context.Context, req *v1.PodSandboxStatusRequest) (*v1.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := lookup(r.sandboxes, req.GetPodSandboxId())
	if !ok {
		return nil, noSandbox(req.GetPodSandboxId())
	}
	resp := &v1.PodSandboxStatusResponse{Status: s.status(), Timestamp: time.Now().UnixNano()}
	for _, c := range s.containers {
		if c.ready {
			resp.ContainersStatuses = append(resp.ContainersStatuses, c.status())
		}
	}
	if req.GetVerbose() {
		resp.Info = info(map[string]any{"config": s.config, "ips": s.ips})
	}
	return resp, nil
}

// UpdatePodSandboxResources implements the CRI. It only records the resources: there
// are no cgroups.
func (r *Runtime) UpdatePodSandboxResources(_ context.Context, req *v1.UpdatePodSandboxResourcesRequest) (*v1.UpdatePodSandboxResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := lookup(r.sandboxes, req.GetPodSandboxId())
	if !ok {
		return nil, noSandbox(req.GetPodSandboxId())
	}
	s.resources = req.GetResources()
	return &v1.UpdatePodSandboxResourcesResponse{}, nil
}

func noSandbox(id string) error {
	return status.Errorf(codes.NotFound, "sandbox %q: not found", id)
}

// wait blocks until done is closed or ctx ends.
func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
