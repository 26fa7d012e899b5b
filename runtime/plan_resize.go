package runtime

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
)

// The resolution of the kernel's cgroups. Smaller differences are rounding errors, not
// changes.
const (
	leastMilliCPULimit   = 10      // a quota of 1 ms in the default period of 100 ms
	leastMilliCPURequest = 2       // two shares
	mostMilliCPURequest  = 256_000 // the maximum of shares
	milliCPUSlack        = 1
	memorySlack          = 64 << 10 // the largest page
	noMemoryLimit        = 1 << 62  // as cgroups report no limit
)

// LeastCPULimit returns MinCPULimit or, if that is 0, the lowest limit in the default period of
// 100 ms: 10 millicores.
func (r *Resources) LeastCPULimit() int64 { return cmp.Or(r.MinCPULimit, leastMilliCPULimit) }

// resize plans the change of a running container's resources to those of the spec: in
// place, or by a restart if its resize policy requires one. An init container never restarts for
// that: what it has done is done, and an API server lets none with such a policy be resized.
func (p *planner) resize(c *corev1.Container, kind ContainerType, have *Container) {
	cpu, memory, quota := resized(p.pod, c, kind, have.Resources)
	switch {
	case !cpu && !memory && !quota:
	case kind != Init && (cpu && podspec.RestartsForResize(c, corev1.ResourceCPU) || memory && podspec.RestartsForResize(c, corev1.ResourceMemory)):
		p.kill(have, ReasonResized, killMessage(c, Regular, "resize requires restart", false), p.grace)
		p.start(c, kind, 0, ReasonResized) // other resources reset the back-off, see delay
	default:
		update := Action{Type: UpdateResources, Container: c.Name, ContainerType: kind, ID: have.ID, Attempt: have.Attempt, Reason: ReasonResized}
		if lowers(p.pod, c, have.Resources) {
			p.changes = slices.Insert(p.changes, 0, update)
		} else {
			p.changes = append(p.changes, update)
		}
	}
}

// lowers reports whether the resize of a container makes room for others: its memory limit
// becomes lower or, if that stays, its CPU limit. It comes first, because others may get more only
// if it succeeds.
func lowers(pod *corev1.Pod, c *corev1.Container, have *Resources) bool {
	reported := have.CPURequest != nil
	limit := limitOf(pod, c, corev1.ResourceMemory)
	if l := bound(limit.Value(), have.MemoryLimit, bytes, reported); l.differ(0, memorySlack) {
		return l.isLower()
	}
	limit = limitOf(pod, c, corev1.ResourceCPU)
	return bound(limit.MilliValue(), have.CPULimit, (*resource.Quantity).MilliValue, reported).isLower()
}

// NeedsResize reports whether the resources of a running container differ from its spec,
// including added and removed limits: whether Plan would change them. Values that the
// runtime does not report count as equal. It is pure.
func NeedsResize(pod *corev1.Pod, c *corev1.Container, kind ContainerType, have *Resources) bool {
	cpu, memory, quota := resized(pod, c, kind, have)
	return cpu || memory || quota
}

// resized reports which resources of a running container differ from its spec. Ephemeral
// containers are not resized. quota means that there is a CPU limit although the container has
// CPUs for itself, which never takes a restart.
func resized(pod *corev1.Pod, c *corev1.Container, kind ContainerType, have *Resources) (cpu, memory, quota bool) {
	if have == nil || kind == Ephemeral {
		return false, false, false
	}
	cpu, memory = differ(pod, c, have)
	return cpu, memory, have.ExclusiveCPUs && !have.NoCPUQuota && have.CPULimit != nil
}

// differ compares actual and desired resources. The CPU request is always set: a runtime
// that reports it reports limits too, so that a missing limit is not set.
func differ(pod *corev1.Pod, c *corev1.Container, have *Resources) (cpu, memory bool) {
	reported := have.CPURequest != nil
	limit := limitOf(pod, c, corev1.ResourceCPU)
	request, ok := c.Resources.Requests[corev1.ResourceCPU]
	if !ok {
		request = limit
	}
	if reported {
		cpu = apart(shared(request.MilliValue()), shared(have.CPURequest.MilliValue()), milliCPUSlack)
	}
	if !have.NoCPUQuota && !have.ExclusiveCPUs {
		cpu = cpu || bound(limit.MilliValue(), have.CPULimit, (*resource.Quantity).MilliValue, reported).differ(have.LeastCPULimit(), milliCPUSlack)
	}
	limit = limitOf(pod, c, corev1.ResourceMemory)
	memory = bound(limit.Value(), have.MemoryLimit, bytes, reported).differ(0, memorySlack)
	if want, ok := c.Resources.Requests[corev1.ResourceMemory]; ok && have.MemoryRequest != nil {
		memory = memory || apart(want.Value(), have.MemoryRequest.Value(), memorySlack)
	}
	return cpu, memory
}

// limitOf returns the limit of the container, or else the pod-level one.
func limitOf(pod *corev1.Pod, c *corev1.Container, name corev1.ResourceName) resource.Quantity {
	if q := c.Resources.Limits[name]; !q.IsZero() || pod.Spec.Resources == nil {
		return q
	}
	return pod.Spec.Resources.Limits[name]
}

// limits are a desired and an actual limit; 0 is none.
type limits struct {
	desired, actual int64
	known           bool // actual was reported
}

func bound(want int64, have *resource.Quantity, value func(*resource.Quantity) int64, reported bool) limits {
	if have == nil {
		return limits{desired: max(want, 0), known: reported}
	}
	return limits{max(want, 0), max(value(have), 0), true}
}

// differ reports whether the limit must be changed, set or removed.
func (l limits) differ(least, slack int64) bool {
	switch {
	case !l.known:
		return false
	case l.desired == 0 || l.actual == 0:
		return l.desired != l.actual
	}
	return apart(max(l.desired, least), max(l.actual, least), slack)
}

// isLower reports whether the desired limit is lower than the actual one.
func (l limits) isLower() bool {
	return l.known && l.desired > 0 && (l.actual == 0 || l.desired < l.actual)
}

func bytes(q *resource.Quantity) int64 {
	if v := q.Value(); v < noMemoryLimit {
		return v
	}
	return 0
}

// shared limits a CPU request to the range of the kernel.
func shared(milli int64) int64 {
	return min(max(milli, leastMilliCPURequest), mostMilliCPURequest)
}

func apart(a, b, slack int64) bool { return a-b > slack || b-a > slack }
