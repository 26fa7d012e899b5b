package pleg

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// difference returns the events that lead from the previous state of a pod to the
// current one. Removed and exited containers come first, then started ones, each
// oldest first. It is pure.
func difference(previous, current runtime.Pod) []Event {
	d := differ{uid: current.UID}
	oldItems, newItems := observedItems(previous), observedItems(current)
	before, after := index(oldItems), index(newItems)
	for _, item := range oldItems {
		if _, ok := after.find(item.id); !ok {
			d.containerRemoved(item)
		}
	}
	for _, item := range newItems {
		if o, _ := before.find(item.id); item.state == runtime.Exited && o.state != runtime.Exited {
			d.emit(ContainerDied, item)
		}
	}
	d.containersMissed(previous, current)
	for _, item := range newItems {
		o, ok := before.find(item.id)
		switch {
		case item.state == runtime.Exited:
		case !ok || o.state != item.state:
			d.emit(eventTypeOf(item.state), item)
		case !sameResources(o.resources, item.resources):
			d.emit(ContainerChanged, item)
		}
	}
	if len(d.events) == 0 && (!slices.Equal(addresses(previous), addresses(current)) || !sameObject(previous.Object, current.Object)) {
		d.events = append(d.events, Event{Type: PodSync, UID: d.uid})
	}
	return d.events
}

// observedItem is a container or a sandbox.
type observedItem struct {
	id, name  string
	attempt   uint32
	state     runtime.ContainerState
	exitCode  int32
	resources *runtime.Resources
}

// observedItems returns the sandboxes and then the containers of p, each oldest
// first. A ready sandbox counts as running, any other as exited.
func observedItems(p runtime.Pod) []observedItem {
	if p.IsEmpty() {
		return nil
	}
	items := make([]observedItem, 0, len(p.Sandboxes)+len(p.Containers))
	for _, s := range slices.Backward(p.Sandboxes) {
		state := runtime.Exited
		if s.State == runtime.SandboxReady {
			state = runtime.Running
		}
		items = append(items, observedItem{id: s.ID, attempt: s.Attempt, state: state})
	}
	for i := range slices.Backward(p.Containers) {
		c := &p.Containers[i]
		items = append(items, observedItem{c.ID, c.Name, c.Attempt, c.State, c.ExitCode, c.Resources})
	}
	return items
}

// finder finds items by id. A short list is searched, which is faster than a map.
// A pod that has crashed for days may have thousands of items.
type finder struct {
	few  []observedItem
	many map[string]int
}

func index(items []observedItem) finder {
	f := finder{few: items}
	if len(items) > 16 {
		f.many = make(map[string]int, len(items))
		for i, item := range items {
			f.many[item.id] = i
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

func (d *differ) emit(t EventType, item observedItem) {
	e := Event{Type: t, UID: d.uid, ID: item.id, Name: item.name, Attempt: item.attempt, State: item.state}
	if t == ContainerDied && item.name != "" && item.state == runtime.Exited {
		e.ExitCode, e.HasExitCode = item.exitCode, true
	}
	d.events = append(d.events, e)
}

// containerRemoved emits the removal, and before it the death if no inspection
// found the container exited.
func (d *differ) containerRemoved(item observedItem) {
	if item.state != runtime.Exited {
		item.state = runtime.Unknown
		d.emit(ContainerDied, item)
	}
	d.emit(ContainerRemoved, item)
}

// containersMissed emits the removal of attempts that were created and removed
// between the inspections. Attempts of a container increase by one, so a gap above
// the last known attempt is such an attempt.
func (d *differ) containersMissed(previous, current runtime.Pod) {
	for i := range slices.Backward(current.Containers) {
		c := &current.Containers[i]
		hasGap := false
		for j := range previous.Containers {
			o := &previous.Containers[j]
			hasGap = hasGap || o.Name == c.Name
			if o.Name == c.Name && o.Attempt+1 >= c.Attempt {
				hasGap = false
				break
			}
		}
		if hasGap && !has(current.Containers, c.Name, c.Attempt-1) {
			d.emit(ContainerRemoved, observedItem{name: c.Name, attempt: c.Attempt - 1})
		}
	}
}

func has(cs []runtime.Container, name string, attempt uint32) bool {
	return slices.ContainsFunc(cs, func(c runtime.Container) bool {
		return c.Name == name && c.Attempt == attempt
	})
}

func eventTypeOf(s runtime.ContainerState) EventType {
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
