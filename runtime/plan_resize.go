package runtime

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What the kernel's cgroups can tell apart. Smaller differences are the rounding
// of a translation and back, not a change.
const (
	leastMilliCPULimit   = 10 // a quota of 1 ms a period
	leastMilliCPURequest = 2  // two shares
	milliCPUSlack        = 1
	memorySlack          = 64 << 10 // the largest page
)

// resize plans the change of a running container's resources to the spec's: in
// place, or by a restart where its resize policy asks for one. It reports
// whether the container goes on running.
func (p *planner) resize(c *corev1.Container, kind Kind, have *Container) bool {
	if have.Resources == nil || kind == Init || kind == Ephemeral {
		return true
	}
	cpu, memory, added := p.differ(c, have.Resources)
	switch {
	case !cpu && !memory && !added:
		return true
	case cpu && restartsFor(c, corev1.ResourceCPU), memory && restartsFor(c, corev1.ResourceMemory):
		p.kill(have, ReasonResized, "its resources changed and its resize policy asks for a restart", p.grace)
		p.start(c, kind, have.BackOffStep, ReasonResized)
		return false
	}
	p.changes = append(p.changes, Action{
		Verb: UpdateResources, Container: c.Name, Kind: kind, ID: have.ID, Attempt: have.Attempt, Reason: ReasonResized,
	})
	return true
}

// differ compares what a container has with what it asks for. added says that
// it asks for a memory limit and has none: a runtime that tells of shares would
// tell of it. A CPU limit may be missing because quotas are off on this node.
func (p *planner) differ(c *corev1.Container, have *Resources) (cpu, memory, added bool) {
	limits, requests := c.Resources.Limits, c.Resources.Requests
	cpu = other(limits, corev1.ResourceCPU, have.CPULimit, milliCPU(leastMilliCPULimit)) ||
		other(requests, corev1.ResourceCPU, have.CPURequest, milliCPU(leastMilliCPURequest))
	memory = other(limits, corev1.ResourceMemory, have.MemoryLimit, bytes) ||
		other(requests, corev1.ResourceMemory, have.MemoryRequest, bytes)
	want, asked := limits[corev1.ResourceMemory]
	added = asked && !want.IsZero() && have.MemoryLimit == nil && have.CPURequest != nil
	return cpu, memory, added
}

// other reports whether list asks for another amount than have. What is not
// asked for or not told never differs.
func other(list corev1.ResourceList, name corev1.ResourceName, have *resource.Quantity, differ func(a, b *resource.Quantity) bool) bool {
	want, ok := list[name]
	return ok && have != nil && !want.IsZero() && differ(&want, have)
}

func milliCPU(least int64) func(a, b *resource.Quantity) bool {
	return func(a, b *resource.Quantity) bool {
		return apart(max(a.MilliValue(), least), max(b.MilliValue(), least), milliCPUSlack)
	}
}

func bytes(a, b *resource.Quantity) bool { return apart(a.Value(), b.Value(), memorySlack) }

func apart(a, b, slack int64) bool { return a-b > slack || b-a > slack }

func restartsFor(c *corev1.Container, name corev1.ResourceName) bool {
	for _, policy := range c.ResizePolicy {
		if policy.ResourceName == name {
			return policy.RestartPolicy == corev1.RestartContainer
		}
	}
	return false
}
