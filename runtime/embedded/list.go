package embedded

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/capability"
)

// batch is the number of items in one response of a streamed list.
const batch = 500

// hasLabels reports whether have has every pair of want.
func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// hasID reports whether id matches want: an id, a prefix, or "" for all.
func hasID(id, want string) bool { return strings.HasPrefix(id, want) }

// listSandboxes returns the sandboxes that match f, newest first.
func (r *Runtime) listSandboxes(f *v1.PodSandboxFilter) []*podItem {
	r.mu.Lock()
	var items []*podItem
	for s := range r.pods.sandboxes.matching(f.GetLabelSelector(), r.sandboxes) {
		it := s.item
		if !hasID(s.id, f.GetId()) ||
			f.GetState() != nil && it.GetState() != f.GetState().GetState() ||
			!hasLabels(it.GetLabels(), f.GetLabelSelector()) {
			continue
		}
		items = append(items, it)
	}
	r.mu.Unlock()
	slices.SortFunc(items, func(a, b *podItem) int { return newer(a.GetCreatedAt(), b.GetCreatedAt(), a.GetId(), b.GetId()) })
	return items
}

// listContainers returns the containers that match f, newest first.
func (r *Runtime) listContainers(f *v1.ContainerFilter) []*containerItem {
	r.mu.Lock()
	var items []*containerItem
	for c := range r.pods.containers.matching(f.GetLabelSelector(), r.containers) {
		it := c.item
		if !hasID(c.ID, f.GetId()) || !hasID(c.SandboxID, f.GetPodSandboxId()) ||
			f.GetState() != nil && it.GetState() != f.GetState().GetState() ||
			!hasLabels(it.GetLabels(), f.GetLabelSelector()) {
			continue
		}
		items = append(items, it)
	}
	r.mu.Unlock()
	slices.SortFunc(items, func(a, b *containerItem) int { return newer(a.GetCreatedAt(), b.GetCreatedAt(), a.GetId(), b.GetId()) })
	return items
}

// newer orders by creation, newest first, then by id.
func newer(a, b int64, aid, bid string) int {
	if a != b {
		if a > b {
			return -1
		}
		return 1
	}
	return strings.Compare(aid, bid)
}

// inBatches sends items a batch at a time. Nothing is sent for none.
func inBatches[T any](items []T, send func([]T) error) error {
	for part := range slices.Chunk(items, batch) {
		if err := send(part); err != nil {
			return err
		}
	}
	return nil
}

// ListPodSandbox implements the CRI.
func (r *Runtime) ListPodSandbox(ctx context.Context, req *v1.ListPodSandboxRequest) (*v1.ListPodSandboxResponse, error) {
	f := req.GetFilter()
	if onWire(ctx) {
		all := f.GetId() == "" && f.GetState() == nil && len(f.GetLabelSelector()) == 0
		return answer(&v1.ListPodSandboxResponse{}, r.encoded(&r.listCache.pods, all, func() []byte {
			return join(r.listSandboxes(f), (*podItem).bytes)
		})), nil
	}
	return &v1.ListPodSandboxResponse{Items: messages(r.listSandboxes(f), (*podItem).message)}, nil
}

// StreamPodSandboxes implements the CRI.
func (r *Runtime) StreamPodSandboxes(req *v1.StreamPodSandboxesRequest, to grpc.ServerStreamingServer[v1.StreamPodSandboxesResponse]) error {
	return inBatches(r.listSandboxes(req.GetFilter()), func(part []*podItem) error {
		return to.Send(fill(&v1.StreamPodSandboxesResponse{}, part, (*podItem).bytes))
	})
}

// ListContainers implements the CRI.
func (r *Runtime) ListContainers(ctx context.Context, req *v1.ListContainersRequest) (*v1.ListContainersResponse, error) {
	f := req.GetFilter()
	if onWire(ctx) {
		all := f.GetId() == "" && f.GetPodSandboxId() == "" && f.GetState() == nil && len(f.GetLabelSelector()) == 0
		return answer(&v1.ListContainersResponse{}, r.encoded(&r.listCache.containers, all, func() []byte {
			return join(r.listContainers(f), (*containerItem).bytes)
		})), nil
	}
	return &v1.ListContainersResponse{Containers: messages(r.listContainers(f), (*containerItem).message)}, nil
}

// StreamContainers implements the CRI.
func (r *Runtime) StreamContainers(req *v1.StreamContainersRequest, to grpc.ServerStreamingServer[v1.StreamContainersResponse]) error {
	return inBatches(r.listContainers(req.GetFilter()), func(part []*containerItem) error {
		return to.Send(fill(&v1.StreamContainersResponse{}, part, (*containerItem).bytes))
	})
}

// ContainerStatus implements the CRI.
func (r *Runtime) ContainerStatus(_ context.Context, req *v1.ContainerStatusRequest) (*v1.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := lookup(r.containers, req.GetContainerId())
	if !ok {
		return nil, noContainer(req.GetContainerId())
	}
	resp := &v1.ContainerStatusResponse{Status: c.status()}
	if req.GetVerbose() {
		extra := map[string]any{"config": redact(c.Config), "sandboxID": c.SandboxID}
		if p, ok := capability.Of[Identified](c.proc); ok {
			extra["pid"] = p.PID()
		}
		resp.Info = info(extra)
	}
	return resp, nil
}

// redact returns c without what may be secret: environment values.
func redact(c *v1.ContainerConfig) map[string]any {
	names := make([]string, len(c.GetEnvs()))
	for i, e := range c.GetEnvs() {
		names[i] = e.GetKey()
	}
	return map[string]any{"metadata": c.GetMetadata(), "command": c.GetCommand(), "args": c.GetArgs(), "env": names}
}

// Version implements the CRI.
func (r *Runtime) Version(context.Context, *v1.VersionRequest) (*v1.VersionResponse, error) {
	return &v1.VersionResponse{Version: "0.1.0", RuntimeName: r.cfg.Name, RuntimeVersion: "v0.37.0", RuntimeApiVersion: "v1"}, nil
}

// Status implements the CRI: both required conditions are true until Close.
func (r *Runtime) Status(_ context.Context, req *v1.StatusRequest) (*v1.StatusResponse, error) {
	features := &v1.RuntimeHandlerFeatures{}
	if f, ok := capability.Of[FeatureReporter](r.cfg.Executor); ok {
		features = f.Features()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed()
	}
	resp := &v1.StatusResponse{
		Status: &v1.RuntimeStatus{Conditions: []*v1.RuntimeCondition{
			{Type: "RuntimeReady", Status: true},
			{Type: "NetworkReady", Status: true},
		}},
		Features: &v1.RuntimeFeatures{},
	}
	for _, h := range append([]string{""}, r.cfg.Handlers...) {
		resp.RuntimeHandlers = append(resp.RuntimeHandlers, &v1.RuntimeHandler{Name: h, Features: features})
	}
	if req.GetVerbose() {
		resp.Info = info(map[string]any{
			"sandboxes": len(r.sandboxes), "containers": len(r.containers), "podCIDR": r.podCIDR, "now": time.Now(),
		})
	}
	return resp, nil
}

// UpdateRuntimeConfig implements the CRI. The pod CIDR is reported by
// Status; addresses stay those of Config.
func (r *Runtime) UpdateRuntimeConfig(_ context.Context, req *v1.UpdateRuntimeConfigRequest) (*v1.UpdateRuntimeConfigResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.podCIDR = req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	return &v1.UpdateRuntimeConfigResponse{}, nil
}

// RuntimeConfig implements the CRI.
func (r *Runtime) RuntimeConfig(context.Context, *v1.RuntimeConfigRequest) (*v1.RuntimeConfigResponse, error) {
	return &v1.RuntimeConfigResponse{Linux: &v1.LinuxRuntimeConfiguration{CgroupDriver: v1.CgroupDriver_CGROUPFS}}, nil
}
