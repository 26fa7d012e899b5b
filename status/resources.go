package status

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// containerResources sets the allocated and the actual resources of a container.
func (g *generator) containerResources(s slot, observed *runtime.Container, cs, previous *corev1.ContainerStatus) {
	cs.AllocatedResources, cs.Resources = nil, nil
	if s.kind == runtime.Ephemeral {
		return // they have none
	}
	if len(s.c.Resources.Requests) > 0 {
		cs.AllocatedResources = s.c.Resources.Requests
	}
	switch {
	case cs.State.Running == nil:
		cs.Resources = s.c.Resources.DeepCopy() // it may have been resized since it ended
	case observed != nil && observed.Resources != nil:
		cs.Resources = actual(g.pod, &s.c.Resources, observed.Resources)
	case previous.Resources != nil && cs.ContainerID == previous.ContainerID:
		cs.Resources = previous.Resources
	default:
		cs.Resources = s.c.Resources.DeepCopy()
	}
}

// podResources sets the allocated resources of the pod and its pod-level resources.
func (g *generator) podResources(st *corev1.PodStatus) {
	if r := podspec.Requests(g.pod); len(r) > 0 {
		st.AllocatedResources = r
	}
	if g.pod.Spec.Resources != nil {
		st.Resources = &corev1.ResourceRequirements{Requests: podspec.Requests(g.pod), Limits: podspec.Limits(g.pod)}
	}
}

// actual returns the spec with the values of the runtime where the two differ by
// more than the rounding of the kernel's units. It contains limits that are still
// set and lacks those that are not set yet. A limit of the whole pod is not one of
// the container.
func actual(pod *corev1.Pod, spec *corev1.ResourceRequirements, observed *runtime.Resources) *corev1.ResourceRequirements {
	out := spec.DeepCopy()
	for _, f := range fields(observed) {
		list := &out.Requests
		if f.limit {
			list = &out.Limits
		}
		want, ok := (*list)[f.name]
		switch {
		case f.observed == nil:
			if ok && f.unbounded && !want.IsZero() {
				delete(*list, f.name)
			}
		case ok && f.same(want, *f.observed):
		case ok, f.limit && !ofPod(pod, f):
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[f.name] = f.observed.DeepCopy()
		}
	}
	return out
}

// ofPod reports whether a limit is the pod-level one.
func ofPod(pod *corev1.Pod, f field) bool {
	if pod.Spec.Resources == nil {
		return false
	}
	want, ok := pod.Spec.Resources.Limits[f.name]
	return ok && f.same(want, *f.observed)
}

// field is one quantity of a container's resources.
type field struct {
	name     corev1.ResourceName
	limit    bool
	observed *resource.Quantity
	same     func(want, observed resource.Quantity) bool
	// unbounded means that a limit without an observed value is not set, rather than
	// not reported.
	unbounded bool
}

func fields(observed *runtime.Resources) []field {
	if observed == nil {
		return nil
	}
	reportsLimits := observed.CPURequest != nil // it is always set: a runtime that reports it reports limits too
	memory, least := observed.MemoryLimit, observed.LeastCPULimit()
	if memory != nil && memory.Value() >= noMemoryLimit {
		memory = nil
	}
	return []field{
		{corev1.ResourceCPU, false, observed.CPURequest, func(a, b resource.Quantity) bool { return near(shares(a), shares(b), 1) }, false},
		{corev1.ResourceCPU, true, observed.CPULimit, func(a, b resource.Quantity) bool {
			return near(max(a.MilliValue(), least), max(b.MilliValue(), least), 1)
		}, reportsLimits && !observed.NoCPUQuota && !observed.ExclusiveCPUs},
		{corev1.ResourceMemory, false, observed.MemoryRequest, func(a, b resource.Quantity) bool { return a.Value() == b.Value() }, false},
		// The kernel keeps memory limits in pages.
		{corev1.ResourceMemory, true, memory, func(a, b resource.Quantity) bool { return near(a.Value(), b.Value(), 1<<16) }, reportsLimits || observed.MemoryLimit != nil},
	}
}

const (
	minShares     = 2
	maxShares     = 262144
	sharesPerCPU  = 1024
	milliPerCPU   = 1000
	noMemoryLimit = 1 << 62 // as cgroups report no limit
)

// shares converts a cpu request to the kernel's units.
func shares(q resource.Quantity) int64 {
	return min(max(q.MilliValue()*sharesPerCPU/milliPerCPU, minShares), maxShares)
}

func near(a, b, by int64) bool { return max(a, b)-min(a, b) <= by }

// volumeMounts returns the statuses of the container's mounts.
func (g *generator) volumeMounts(c *corev1.Container) []corev1.VolumeMountStatus {
	if len(c.VolumeMounts) == 0 {
		return nil
	}
	out := make([]corev1.VolumeMountStatus, len(c.VolumeMounts))
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		out[i] = corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if !m.ReadOnly {
			continue
		}
		mode := corev1.RecursiveReadOnlyDisabled
		if m.RecursiveReadOnly != nil {
			mode = *m.RecursiveReadOnly
		}
		if mode == corev1.RecursiveReadOnlyIfPossible {
			mode = corev1.RecursiveReadOnlyDisabled
			if g.hasRecursiveReadOnlyMounts() {
				mode = corev1.RecursiveReadOnlyEnabled
			}
		}
		out[i].RecursiveReadOnly = &mode
	}
	return out
}

// hasRecursiveReadOnlyMounts reports whether the handler of the pod can make mounts read-only
// together with all mounts below them.
func (g *generator) hasRecursiveReadOnlyMounts() bool {
	name := ""
	if class := g.pod.Spec.RuntimeClassName; class != nil {
		name = *class
	}
	return slices.ContainsFunc(g.env.Handlers, func(h runtime.Handler) bool {
		return h.Name == name && h.RecursiveReadOnlyMounts
	})
}
