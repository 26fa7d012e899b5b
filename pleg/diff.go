package pleg

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// diff returns the events that lead from one view of a pod to a later one: what
// ended first, then what began, each oldest first. It is pure.
func diff(old, now runtime.Pod) []Event {
	d := differ{uid: now.UID}
	if d.uid == "" {
		d.uid = old.UID
	}
	was, is := observedItems(old), observedItems(now)
	before, after := index(was), index(is)
	for _, t := range was {
		if _, ok := after.find(t.id); !ok {
			d.containerRemoved(t)
		}
	}
	for _, t := range is {
		if o, ok := before.find(t.id); t.state == runtime.Exited && (!ok || o.state != t.state) {
			d.emit(ContainerDied, t)
		}
	}
	d.containerMissed(old, now)
	for _, t := range is {
		o, ok := before.find(t.id)
		switch {
		case t.state == runtime.Exited:
		case !ok || o.state != t.state:
			d.emit(kindOf(t.state), t)
		case !sameResources(o.resources, t.resources):
			d.emit(ContainerChanged, t)
		}
	}
	if len(d.events) == 0 && !slices.Equal(addresses(old), addresses(now)) {
		d.events = append(d.events, Event{Type: PodSync, UID: d.uid})
	}
	return d.events
}

// observedItem is what a container and a sandbox have in common.
type observedItem struct {
	id, name  string
	attempt   uint32
	state     runtime.ContainerState
	exitCode  int32
	resources *runtime.Resources
}

// observedItems returns the sandboxes and containers of p, each oldest first. A ready
// sandbox runs and one that is not has exited.
func observedItems(p runtime.Pod) []observedItem {
	if len(p.Sandboxes)+len(p.Containers) == 0 {
		return nil
	}
	ts := make([]observedItem, 0, len(p.Sandboxes)+len(p.Containers))
	for _, s := range slices.Backward(p.Sandboxes) {
		state := runtime.Exited
		if s.State == runtime.SandboxReady {
			state = runtime.Running
		}
		ts = append(ts, observedItem{id: s.ID, attempt: s.Attempt, state: state})
	}
	for i := range slices.Backward(p.Containers) {
		c := &p.Containers[i]
		ts = append(ts, observedItem{c.ID, c.Name, c.Attempt, c.State, c.ExitCode, c.Resources})
	}
	return ts
}

// finder looks things up by id. Few are searched through, which is faster than a
// map; a pod that crashed for days may have thousands.
type finder struct {
	few  []observedItem
	many map[string]int
}

func index(ts []observedItem) finder {
	f := finder{few: ts}
	if len(ts) > 16 {
		f.many = make(map[string]int, len(ts))
		for i, t := range ts {
			f.many[t.id] = i
		}
	}
	return f
}

func (f finder) find(id string) (observedItem, bool) {
	if f.many != nil {
		i, ok := f.many[id]
		if !ok {
			return observedItem{}, false
		}
		return f.few[i], true
	}
	for i := range f.few {
		if f.few[i].id == id {
			return f.few[i], true
		}
	}
	return observedItem{}, false
}

type differ struct {
	uid    types.UID
	events []Event
}

func (d *differ) emit(k EventType, t observedItem) {
	e := Event{Type: k, UID: d.uid, ID: t.id, Name: t.name, Attempt: t.attempt, State: t.state}
	if k == ContainerDied && t.name != "" && t.state == runtime.Exited {
		e.ExitCode, e.HasExitCode = t.exitCode, true
	}
	d.events = append(d.events, e)
}

// containerRemoved tells that t is no more, and that it died if it was not seen dead.
func (d *differ) containerRemoved(t observedItem) {
	if t.state != runtime.Exited {
		t.state = runtime.Unknown
		d.emit(ContainerDied, t)
	}
	d.emit(ContainerRemoved, t)
}

// containerMissed tells of attempts that came and went between the views: the attempts
// of a container go up by one, so a gap above the last one seen is one.
func (d *differ) containerMissed(old, now runtime.Pod) {
	for i := range slices.Backward(now.Containers) {
		c := &now.Containers[i]
		seen := false
		for j := range old.Containers {
			o := &old.Containers[j]
			seen = seen || o.Name == c.Name
			if o.Name == c.Name && o.Attempt+1 >= c.Attempt {
				seen = false
				break
			}
		}
		if seen && !has(now.Containers, c.Name, c.Attempt-1) {
			d.emit(ContainerRemoved, observedItem{name: c.Name, attempt: c.Attempt - 1})
		}
	}
}

func has(cs []runtime.Container, name string, attempt uint32) bool {
	return slices.ContainsFunc(cs, func(c runtime.Container) bool {
		return c.Name == name && c.Attempt == attempt
	})
}

func kindOf(s runtime.ContainerState) EventType {
	if s == runtime.Running {
		return ContainerStarted
	}
	return ContainerChanged
}

func addresses(p runtime.Pod) []string {
	if len(p.Sandboxes) == 0 {
		return nil
	}
	return p.Sandboxes[0].IPs
}

func sameResources(a, b *runtime.Resources) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil {
		return false
	}
	return sameQuantity(a.CPURequest, b.CPURequest) && sameQuantity(a.CPULimit, b.CPULimit) &&
		sameQuantity(a.MemoryRequest, b.MemoryRequest) && sameQuantity(a.MemoryLimit, b.MemoryLimit)
}

func sameQuantity(a, b *resource.Quantity) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Cmp(*b) == 0
}
