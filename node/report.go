package node

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

// Limits of the images in the status of a node, as with a kubelet.
const (
	defaultMaxImages = 50
	maxImageNames    = 5
)

// Values of StatusConfig.MaxImages that are no numbers.
const (
	AllImages = -1
	NoImages  = -2
)

// StatusConfig describes a Status. Functions must not block for long; nil ones have
// nothing to tell.
type StatusConfig struct {
	Resources Resources
	// Devices and AllocatableDevices are reported in addition to Resources. One that is
	// only in Devices is reported with 0 allocatable.
	Devices, AllocatableDevices func() corev1.ResourceList
	MaxPods                     int // 0: no bound is reported
	Info                        corev1.NodeSystemInfo
	Conditions                  *Conditions // required
	Addresses                   func() ([]corev1.NodeAddress, error)
	Runtime                     func() runtime.Status // the last status of the runtime
	Images                      func(ctx context.Context) ([]runtime.Image, error)
	MaxImages                   int // images that are reported, largest first; AllImages or NoImages. Default: 50
	// VolumesInUse are the attached volumes that pods use.
	VolumesInUse func() []corev1.UniqueVolumeName
	// DeclaredFeatures are reported as they are, sorted. Default: none
	DeclaredFeatures []string
	// Port is that of the agent's HTTPS server. Default: none.
	Port int32
}

// Status computes the status of a node, as it is reported to an API server and to
// people.
type Status struct {
	cfg StatusConfig
}

// NewStatus validates cfg.
func NewStatus(cfg StatusConfig) (*Status, error) {
	if cfg.Conditions == nil {
		return nil, errors.New("node: StatusConfig.Conditions: required")
	}
	if cfg.MaxImages == 0 {
		cfg.MaxImages = defaultMaxImages
	}
	if cfg.AllocatableDevices == nil {
		cfg.AllocatableDevices = func() corev1.ResourceList { return nil }
	}
	return &Status{cfg: cfg}, nil
}

// Conditions returns the conditions now. It does no I/O.
func (s *Status) Conditions() []corev1.NodeCondition { return s.cfg.Conditions.At(time.Now()) }

// At returns the status of the node. The caller owns it. The error says what could not
// be found out and is left out.
func (s *Status) At(ctx context.Context, now time.Time) (corev1.NodeStatus, error) {
	st := corev1.NodeStatus{
		Capacity:    s.list(s.cfg.Resources.Capacity),
		Allocatable: s.list(s.cfg.Resources.Allocatable),
		Conditions:  s.cfg.Conditions.At(now),
		NodeInfo:    s.cfg.Info,

		DeclaredFeatures: slices.Clone(s.cfg.DeclaredFeatures),
	}
	if s.cfg.Devices != nil {
		allocatable := s.cfg.AllocatableDevices()
		for name, q := range s.cfg.Devices() {
			st.Capacity[name], st.Allocatable[name] = q, allocatable[name]
		}
	}
	st.DaemonEndpoints.KubeletEndpoint.Port = s.cfg.Port
	var errs []error
	if s.cfg.Addresses != nil {
		addresses, err := s.cfg.Addresses()
		st.Addresses, errs = addresses, append(errs, err)
	}
	if s.cfg.Runtime != nil {
		setRuntime(&st, s.cfg.Runtime())
	}
	if s.cfg.Images != nil {
		images, err := s.cfg.Images(ctx)
		if errs = append(errs, err); err == nil {
			st.Images = containerImages(images, s.cfg.MaxImages)
		}
	}
	if s.cfg.VolumesInUse != nil {
		st.VolumesInUse = s.cfg.VolumesInUse()
	}
	return st, errors.Join(errs...)
}

// list returns resources under their names in the API, with the number of pods.
func (s *Status) list(resources corev1.ResourceList) corev1.ResourceList {
	list := resources.DeepCopy()
	if list == nil {
		list = corev1.ResourceList{}
	}
	delete(list, ResourcePIDs) // pods do not request processes
	if s.cfg.MaxPods > 0 {
		list[corev1.ResourcePods] = *resource.NewQuantity(int64(s.cfg.MaxPods), resource.DecimalSI)
	}
	return list
}

// setRuntime sets what the runtime tells about itself. While it is not known, its handlers
// stay as they are in the API server.
func setRuntime(st *corev1.NodeStatus, rt runtime.Status) {
	name, version := rt.Name, rt.Version
	if version == "" {
		version = unknownOS
	}
	if name != "" {
		st.NodeInfo.ContainerRuntimeVersion = name + "://" + version
		st.RuntimeHandlers = []corev1.NodeRuntimeHandler{} // those of an earlier runtime are removed
	}
	for _, h := range rt.Handlers {
		st.RuntimeHandlers = append(st.RuntimeHandlers, corev1.NodeRuntimeHandler{Name: h.Name, Features: &corev1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: &h.RecursiveReadOnlyMounts, UserNamespaces: &h.UserNamespaces,
		}})
	}
	if name != "" {
		st.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &rt.SupplementalGroupsPolicy}
	}
}

// containerImages returns the largest images with up to five names each, digests first. The
// result is never nil: images that were reported before are removed.
func containerImages(images []runtime.Image, limit int) []corev1.ContainerImage {
	out := []corev1.ContainerImage{}
	if limit == NoImages {
		return out
	}
	images = slices.DeleteFunc(slices.Clone(images), func(i runtime.Image) bool { return len(i.Digests)+len(i.Tags) == 0 }) // the API requires a name
	slices.SortFunc(images, func(a, b runtime.Image) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.ID, a.ID)) })
	if limit >= 0 && len(images) > limit {
		images = images[:limit]
	}
	for _, image := range images {
		names := slices.Concat(image.Digests, image.Tags)
		out = append(out, corev1.ContainerImage{Names: names[:min(len(names), maxImageNames)], SizeBytes: int64(min(image.Bytes, 1<<62))}) //nolint:gosec // bounded
	}
	return out
}
