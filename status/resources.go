package status

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// containerResources tells what a container was given and what it runs with.
func (g *generator) containerResources(s slot, seen *runtime.Container, cs, former *corev1.ContainerStatus) {
	cs.AllocatedResources, cs.Resources = nil, nil
	if s.kind == runtime.Ephemeral {
		return // they have none
	}
	if len(s.c.Resources.Requests) > 0 {
		cs.AllocatedResources = s.c.Resources.Requests
	}
	same := cs.ContainerID != "" && cs.ContainerID == former.ContainerID
	switch {
	case cs.State.Running != nil && seen != nil && seen.Resources != nil:
		cs.Resources = actual(g.pod, &s.c.Resources, seen.Resources)
	case same && former.Resources != nil && cs.State.Waiting == nil:
		cs.Resources = former.Resources
	default:
		cs.Resources = s.c.Resources.DeepCopy()
		cs.Resources.Claims = nil
	}
}

// podResources tells what was set aside for the pod and, where it has resources as
// a whole, those.
func (g *generator) podResources(st *corev1.PodStatus) {
	if r := podspec.Requests(g.pod); len(r) > 0 {
		st.AllocatedResources = r
	}
	if g.pod.Spec.Resources != nil {
		st.Resources = &corev1.ResourceRequirements{Requests: podspec.Requests(g.pod), Limits: podspec.Limits(g.pod)}
	}
}

// actual is the spec with what the runtime says in the places of what the spec
// says, where the two differ by more than what the kernel's units lose. Of limits it
// also has those that are still there, and not those that are not there yet; one
// that is there for the pod as a whole is none of the container's.
func actual(pod *corev1.Pod, spec *corev1.ResourceRequirements, seen *runtime.Resources) *corev1.ResourceRequirements {
	out := spec.DeepCopy()
	out.Claims = nil
	for _, f := range fields(seen) {
		list := &out.Requests
		if f.limit {
			list = &out.Limits
		}
		want, ok := (*list)[f.name]
		switch {
		case f.seen == nil:
			if ok && f.unbounded && !want.IsZero() {
				delete(*list, f.name)
			}
		case ok && f.same(want, *f.seen):
		case ok, f.limit && !ofPod(pod, f):
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[f.name] = f.seen.DeepCopy()
		}
	}
	return out
}

// ofPod reports whether a limit is the one of the pod as a whole.
func ofPod(pod *corev1.Pod, f field) bool {
	if pod.Spec.Resources == nil {
		return false
	}
	want, ok := pod.Spec.Resources.Limits[f.name]
	return ok && f.same(want, *f.seen)
}

// field is one figure of a container's resources.
type field struct {
	name  corev1.ResourceName
	limit bool
	seen  *resource.Quantity
	same  func(want, seen resource.Quantity) bool
	// unbounded says that a limit that was not seen is not there, rather than not
	// told.
	unbounded bool
}

func fields(seen *runtime.Resources) []field {
	if seen == nil {
		return nil
	}
	told := seen.CPURequest != nil // there always is one: who tells of it tells of limits too
	memory := seen.MemoryLimit
	if memory != nil && memory.Value() >= noMemoryLimit {
		memory = nil
	}
	return []field{
		{corev1.ResourceCPU, false, seen.CPURequest, func(a, b resource.Quantity) bool { return near(shares(a), shares(b), 1) }, false},
		{corev1.ResourceCPU, true, seen.CPULimit, func(a, b resource.Quantity) bool {
			return near(max(a.MilliValue(), minQuotaMilli), max(b.MilliValue(), minQuotaMilli), 1)
		}, told && !seen.NoCPUQuota},
		{corev1.ResourceMemory, false, seen.MemoryRequest, func(a, b resource.Quantity) bool { return a.Value() == b.Value() }, false},
		// The kernel keeps memory limits in pages.
		{corev1.ResourceMemory, true, memory, func(a, b resource.Quantity) bool { return near(a.Value(), b.Value(), 1<<16) }, told || seen.MemoryLimit != nil},
	}
}

const (
	minQuotaMilli = 10 // the kernel's least quota, 1 ms in a period of 100 ms
	minShares     = 2
	maxShares     = 262144
	sharesPerCPU  = 1024
	milliPerCPU   = 1000
	noMemoryLimit = 1 << 62 // how cgroups write that there is none
)

// shares are what a cpu request comes to in the kernel's units.
func shares(q resource.Quantity) int64 {
	return min(max(q.MilliValue()*sharesPerCPU/milliPerCPU, minShares), maxShares)
}

func near(a, b, by int64) bool { return max(a, b)-min(a, b) <= by }

// volumeMounts tells how the container's mounts came out.
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
			if g.env.HasRecursiveReadOnlyMounts {
				mode = corev1.RecursiveReadOnlyEnabled
			}
		}
		out[i].RecursiveReadOnly = &mode
	}
	return out
}
