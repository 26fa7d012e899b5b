package podresources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	apialpha "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/internal/grpcsocket"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/unixsocket"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

// Devices knows what the containers have. *devices.Manager is one.
type Devices interface {
	Allocations(uid types.UID) []devices.Allocation
	Devices() map[corev1.ResourceName][]devices.Device
}

// noDevices are those of a node without device plugins.
type noDevices struct{}

func (noDevices) Allocations(types.UID) []devices.Allocation        { return nil }
func (noDevices) Devices() map[corev1.ResourceName][]devices.Device { return nil }

// CPUs knows which CPUs containers have for themselves. *cpumanager.Manager does.
type CPUs interface {
	CPUs(uid types.UID, container string) topology.Set
	AllocatableCPUs() topology.Set
}

// Memory knows to which NUMA nodes the memory of containers is confined. *cpumanager.Manager does.
type Memory interface {
	// Memory returns these nodes, none if it is not confined, and how many bytes the container has there.
	Memory(uid types.UID, container string) (nodes topology.Set, bytes int64)
	// AllocatableMemory returns the bytes that containers can have of each node.
	AllocatableMemory() map[int]int64
}

// HugePages knows which huge pages are set aside for containers, by size. *cpumanager.Manager does.
type HugePages interface {
	// HugePages returns the bytes that the container has on the nodes that Memory returns.
	HugePages(uid types.UID, container string) map[corev1.ResourceName]int64
	// AllocatableHugePages returns the bytes that containers can have of each node.
	AllocatableHugePages() map[int]map[corev1.ResourceName]int64
}

// Claims knows which devices containers have by ResourceClaims. *dra.Manager does.
type Claims interface {
	DynamicResources(pod *corev1.Pod, container *corev1.Container) []*api.DynamicResource
}

// Config describes a Server. Path and Pods are required.
type Config struct {
	// Path is the absolute path of the socket. Its directory is created with mode 0700 if
	// it is missing. Clients usually expect /var/lib/kubelet/pod-resources/kubelet.sock.
	Path string
	// Pods returns the pods of the node with their statuses. They are read-only.
	Pods      func() []*corev1.Pod
	Devices   Devices   // default: there are no devices of plugins
	CPUs      CPUs      // default: no container has CPUs for itself
	Memory    Memory    // default: no container is confined to the memory of NUMA nodes
	HugePages HugePages // default: none are set aside for a container; needs Memory
	Claims    Claims    // default: no container has devices by ResourceClaims
	Hooks     Hooks
	Logger    *slog.Logger // default: discard
}

// Hooks observe a Server. They must not block. A panic in one is logged.
type Hooks struct {
	// Requested is called after each call of the API, with its version (v1, v1alpha1) and its method (List, Get,
	// GetAllocatableResources). A call above the rate is left out.
	Requested func(version, method string, err error)
}

// Server serves the API to the user of its process alone.
type Server struct {
	api.UnimplementedPodResourcesListerServer

	cfg Config
}

// New returns a Server. It checks cfg and does no I/O.
func New(cfg Config) (*Server, error) {
	var errs []error
	if err := unixsocket.CheckPath(cfg.Path); err != nil {
		errs = append(errs, fmt.Errorf("podresources: Config.Path: %w", err))
	}
	if cfg.Pods == nil {
		errs = append(errs, errors.New("podresources: Config.Pods: required"))
	}
	if cfg.HugePages != nil && cfg.Memory == nil {
		errs = append(errs, errors.New("podresources: Config.HugePages: needs Memory, which knows their NUMA nodes"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.Devices == nil {
		cfg.Devices = noDevices{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = Hooks{Requested: safe.Hook3(cfg.Logger, "Requested", cfg.Hooks.Requested)}
	return &Server{cfg: cfg}, nil
}

// Run serves the socket until ctx is done, and returns nil then. An error means that the
// socket could not be made or failed, for example because a kubelet serves it.
func (s *Server) Run(ctx context.Context) error {
	err := grpcsocket.ListenAndServe(ctx, s.cfg.Path, grpcsocket.Config{
		Name: "pod resources API",
		Register: func(r grpc.ServiceRegistrar) {
			api.RegisterPodResourcesListerServer(r, s)
			apialpha.RegisterPodResourcesListerServer(r, alphaServer{s: s})
		},
		LimitsClients: true, Ended: s.cfg.Hooks.Requested, Logger: s.cfg.Logger,
	})
	if err != nil {
		return fmt.Errorf("podresources: %w", err)
	}
	return nil
}

// List returns the resources of all pods that have not ended.
func (s *Server) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	r := &api.ListPodResourcesResponse{}
	for _, pod := range s.cfg.Pods() {
		if !podspec.IsTerminalPhase(pod.Status.Phase) {
			r.PodResources = append(r.PodResources, s.podResources(pod))
		}
	}
	return r, nil
}

// Get returns the resources of one pod. Of several with its name, as while one replaces another, it is the one
// that is not terminating, and of these the newest. The code of the error is NotFound if there is no such pod, or
// it has ended.
func (s *Server) Get(_ context.Context, req *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	var found *corev1.Pod
	for _, pod := range s.cfg.Pods() {
		if pod.Namespace == req.GetPodNamespace() && pod.Name == req.GetPodName() && !podspec.IsTerminalPhase(pod.Status.Phase) &&
			(found == nil || podspec.Replaces(pod, found)) {
			found = pod
		}
	}
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "no pod %q in namespace %q runs on this node", req.GetPodName(), req.GetPodNamespace())
	}
	return &api.GetPodResourcesResponse{PodResources: s.podResources(found)}, nil
}

// GetAllocatableResources returns the healthy devices, allocated or not, the CPUs that containers
// can have for themselves, and the memory that they can be confined to.
func (s *Server) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	r := &api.AllocatableResourcesResponse{}
	if s.cfg.CPUs != nil {
		r.CpuIds = cpuIDs(s.cfg.CPUs.AllocatableCPUs())
	}
	r.Memory = s.allocatableMemory()
	for name, list := range s.cfg.Devices.Devices() {
		list = slices.DeleteFunc(list, func(d devices.Device) bool { return !d.Healthy })
		r.Devices = append(r.Devices, containerDevices(name, list)...)
	}
	slices.SortStableFunc(r.Devices, func(a, b *api.ContainerDevices) int { return strings.Compare(a.GetResourceName(), b.GetResourceName()) })
	return r, nil
}

// devicesOf returns the devices of a pod by container.
func (s *Server) devicesOf(pod *corev1.Pod) map[string][]*api.ContainerDevices {
	byContainer := map[string][]*api.ContainerDevices{}
	for _, a := range s.cfg.Devices.Allocations(pod.UID) {
		byContainer[a.Container] = append(byContainer[a.Container], containerDevices(a.Resource, a.Devices)...)
	}
	return byContainer
}

// podResources returns what the containers of a pod have. Init containers that end are
// left out, because others take their devices over.
func (s *Server) podResources(pod *corev1.Pod) *api.PodResources {
	byContainer := s.devicesOf(pod)
	r := &api.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podspec.IsSidecar(c) {
			r.Containers = append(r.Containers, s.containerResources(pod, c, byContainer[c.Name]))
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		r.Containers = append(r.Containers, s.containerResources(pod, c, byContainer[c.Name]))
	}
	return r
}

func (s *Server) containerResources(pod *corev1.Pod, c *corev1.Container, list []*api.ContainerDevices) *api.ContainerResources {
	r := &api.ContainerResources{Name: c.Name, Devices: list}
	if s.cfg.CPUs != nil {
		r.CpuIds = cpuIDs(s.cfg.CPUs.CPUs(pod.UID, c.Name))
	}
	r.Memory = s.memoryOf(pod.UID, c.Name)
	if s.cfg.Claims != nil {
		r.DynamicResources = s.cfg.Claims.DynamicResources(pod, c)
	}
	return r
}

func cpuIDs(cpus topology.Set) []int64 {
	var ids []int64
	for _, id := range cpus.IDs() {
		ids = append(ids, int64(id))
	}
	return ids
}

// containerDevices returns an entry for each device, because each has its own topology.
func containerDevices(name corev1.ResourceName, list []devices.Device) []*api.ContainerDevices {
	out := make([]*api.ContainerDevices, 0, len(list))
	for _, d := range list {
		entry := &api.ContainerDevices{ResourceName: string(name), DeviceIds: []string{d.ID}}
		for _, n := range d.NUMANodes {
			if entry.Topology == nil {
				entry.Topology = &api.TopologyInfo{}
			}
			entry.Topology.Nodes = append(entry.Topology.Nodes, &api.NUMANode{ID: n})
		}
		out = append(out, entry)
	}
	return out
}
