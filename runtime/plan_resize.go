package runtime

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What the kernel's cgroups can tell apart. Smaller differences are the rounding
// of a translation and back, not a change.
const (
	leastMilliCPULimit   = 10      // a quota of 1 ms a period
	leastMilliCPURequest = 2       // two shares
	mostMilliCPURequest  = 256_000 // all the shares there are
	milliCPUSlack        = 1
	memorySlack          = 64 << 10 // the largest page
	noMemoryLimit        = 1 << 62  // how cgroups write that there is none
)

// resize plans the change of a running container's resources to the spec's: in
// place, or by a restart where its resize policy asks for one.
func (p *planner) resize(c *corev1.Container, kind ContainerType, have *Container) {
	cpu, memory := resized(p.pod, c, kind, have.Resources)
	switch {
	case !cpu && !memory:
	case cpu && restartsFor(c, corev1.ResourceCPU), memory && restartsFor(c, corev1.ResourceMemory):
		p.kill(have, ReasonResized, "its resources changed and its resize policy asks for a restart", p.grace)
		p.start(c, kind, have.BackOffStep, ReasonResized)
	default:
		p.changes = append(p.changes, Action{
			Type: UpdateResources, Container: c.Name, ContainerType: kind, ID: have.ID, Attempt: have.Attempt, Reason: ReasonResized,
		})
	}
}

// NeedsResize reports whether a running container has other resources than its spec
// asks for, a limit more or one less included: whether Plan would change them. What
// the runtime does not tell is taken as right. It is pure.
func NeedsResize(pod *corev1.Pod, c *corev1.Container, kind ContainerType, have *Resources) bool {
	cpu, memory := resized(pod, c, kind, have)
	return cpu || memory
}

// resized tells which resources of a running container differ from its spec's.
// Init containers and ephemeral ones keep what they have.
func resized(pod *corev1.Pod, c *corev1.Container, kind ContainerType, have *Resources) (cpu, memory bool) {
	if have == nil || kind == Init || kind == Ephemeral {
		return false, false
	}
	return differ(pod, c, have)
}

// differ compares what a container has with what it asks for. A runtime that
// tells of the CPU request, which there always is, would tell of limits too: what
// is missing then is not bounded.
func differ(pod *corev1.Pod, c *corev1.Container, have *Resources) (cpu, memory bool) {
	told := have.CPURequest != nil
	limit := limitOf(pod, c, corev1.ResourceCPU)
	request, ok := c.Resources.Requests[corev1.ResourceCPU]
	if !ok {
		request = limit
	}
	if told {
		cpu = apart(shared(request.MilliValue()), shared(have.CPURequest.MilliValue()), milliCPUSlack)
	}
	if !have.NoCPUQuota {
		cpu = cpu || bound(limit.MilliValue(), have.CPULimit, (*resource.Quantity).MilliValue, told).differ(leastMilliCPULimit, milliCPUSlack)
	}
	limit = limitOf(pod, c, corev1.ResourceMemory)
	memory = bound(limit.Value(), have.MemoryLimit, bytes, told).differ(0, memorySlack)
	if want, ok := c.Resources.Requests[corev1.ResourceMemory]; ok && have.MemoryRequest != nil {
		memory = memory || apart(want.Value(), have.MemoryRequest.Value(), memorySlack)
	}
	return cpu, memory
}

// limit is the container's, or else the pod's for all its containers together.
func limitOf(pod *corev1.Pod, c *corev1.Container, name corev1.ResourceName) resource.Quantity {
	if q := c.Resources.Limits[name]; !q.IsZero() || pod.Spec.Resources == nil {
		return q
	}
	return pod.Spec.Resources.Limits[name]
}

// limits are a limit that is wanted and the one there is; 0 is none.
type limits struct {
	desired, actual int64
	known           bool // what there is was told
}

func bound(want int64, have *resource.Quantity, value func(*resource.Quantity) int64, told bool) limits {
	if have == nil {
		return limits{desired: max(want, 0), known: told}
	}
	return limits{max(want, 0), max(value(have), 0), true}
}

// differ reports whether the limit is to be changed, set or taken away.
func (l limits) differ(least, slack int64) bool {
	switch {
	case !l.known:
		return false
	case l.desired == 0 || l.actual == 0:
		return l.desired != l.actual
	}
	return apart(max(l.desired, least), max(l.actual, least), slack)
}

func bytes(q *resource.Quantity) int64 {
	if v := q.Value(); v < noMemoryLimit {
		return v
	}
	return 0
}

// shared is what the kernel makes of a CPU request.
func shared(milli int64) int64 {
	return min(max(milli, leastMilliCPURequest), mostMilliCPURequest)
}

func apart(a, b, slack int64) bool { return a-b > slack || b-a > slack }

func restartsFor(c *corev1.Container, name corev1.ResourceName) bool {
	for _, policy := range c.ResizePolicy {
		if policy.ResourceName == name {
			return policy.RestartPolicy == corev1.RestartContainer
		}
	}
	return false
}
