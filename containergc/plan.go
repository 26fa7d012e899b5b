package containergc

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Policy says how much of what is dead is kept.
type Policy struct {
	// MinAge is how long ago something must have been made to be removed.
	// Default: 0. It does not count for pods that are gone.
	MinAge time.Duration
	// PerContainer is how many dead containers of one name are kept in a pod.
	// Default: 1. Less is not possible; negative means all of them.
	PerContainer int
	// PerNode is how many dead containers are kept in all. Those that each pod
	// still needs stay though they are more. Default: 0, which is no limit.
	PerNode int
}

// Standing says what is known of a pod besides what runs of it.
type Standing uint8

// The standings.
const (
	// Wanted: it runs, or may run, or it is not known whether it should.
	Wanted Standing = iota
	// Ended: it is over for good, but its status is still told. What is left of it
	// goes when disk is short.
	Ended
	// Gone: nobody wants to know of it any more. All that is left of it goes.
	Gone
)

// Removal is one thing to remove: a container, or if Container is nil a sandbox.
type Removal struct {
	UID       types.UID
	Container *runtime.Container
	Sandbox   *runtime.Sandbox
	Pod       *runtime.Pod // that it belongs to
}

// Plan returns what is to be removed, in order: containers, the oldest first,
// then sandboxes. It is pure. A sandbox is only in it if every container of it
// is too: if one of those does not go, the sandbox must stay.
//
// short says that disk is short: then pods that have ended count as gone, and
// MinAge does not count.
func Plan(pods []runtime.Pod, standing func(types.UID) Standing, p Policy, short bool, now time.Time) []Removal {
	var sure, spare []Removal
	dead := 0
	for i := range pods {
		pod := &pods[i]
		gone := standing(pod.UID)
		whole := gone == Gone || gone == Ended && short
		kept := make(map[string]int)
		for _, c := range newestFirst(pod) {
			old := short || aged(c.Created, p, now)
			switch {
			case c.State == runtime.Exited && !whole:
				kept[c.Name]++
				r := Removal{UID: pod.UID, Pod: pod, Container: c}
				switch n := kept[c.Name]; {
				case old && p.PerContainer >= 0 && n > max(p.PerContainer, 1):
					sure = append(sure, r)
				case old && n > 1:
					spare = append(spare, r)
					dead++
				default:
					dead++
				}
			case c.State == runtime.Exited, c.State == runtime.Created && whole,
				// Made in a sandbox that is no more, it will never start. In the newest
				// one a start may be under way.
				c.State == runtime.Created && old && !inNewest(pod, c):
				sure = append(sure, Removal{UID: pod.UID, Pod: pod, Container: c})
			}
		}
	}
	byAge(spare)
	if p.PerNode > 0 && dead > p.PerNode {
		sure = append(sure, spare[:min(len(spare), dead-p.PerNode)]...)
	}
	byAge(sure)
	return append(sure, sandboxes(pods, sure, standing, p, short, now)...)
}

// newestFirst returns the pod's containers by attempt: clocks jump, attempts do
// not.
func newestFirst(pod *runtime.Pod) []*runtime.Container {
	list := make([]*runtime.Container, len(pod.Containers))
	for i := range pod.Containers {
		list[i] = &pod.Containers[i]
	}
	slices.SortStableFunc(list, func(a, b *runtime.Container) int { return cmp.Compare(b.Attempt, a.Attempt) })
	return list
}

// aged reports whether something is old enough to go. What was made in the
// future is: the clock was set back, and it could stay for years.
func aged(made time.Time, p Policy, now time.Time) bool {
	return made.After(now) || now.Sub(made) >= p.MinAge
}

func inNewest(pod *runtime.Pod, c *runtime.Container) bool {
	s := newest(pod)
	return s == nil || c.SandboxID == s.ID || c.SandboxID == ""
}

func newest(pod *runtime.Pod) *runtime.Sandbox {
	var found *runtime.Sandbox
	for i := range pod.Sandboxes {
		if s := &pod.Sandboxes[i]; found == nil || s.Attempt > found.Attempt {
			found = s
		}
	}
	return found
}

func byAge(list []Removal) {
	slices.SortStableFunc(list, func(a, b Removal) int {
		return cmp.Or(a.Container.Created.Compare(b.Container.Created), cmp.Compare(a.Container.ID, b.Container.ID))
	})
}

// sandboxes plans the removal of those that are dead and will be empty, but for
// the newest of a pod that is still told of.
func sandboxes(pods []runtime.Pod, going []Removal, standing func(types.UID) Standing, p Policy, short bool, now time.Time) []Removal {
	goes := make(map[string]bool, len(going))
	for _, r := range going {
		goes[r.Container.ID] = true
	}
	var out []Removal
	for i := range pods {
		pod := &pods[i]
		held := make(map[string]bool)
		for j := range pod.Containers {
			if c := &pod.Containers[j]; !goes[c.ID] {
				held[c.SandboxID] = true
			}
		}
		gone := standing(pod.UID)
		whole := gone == Gone || gone == Ended && short
		for j := range pod.Sandboxes {
			s := &pod.Sandboxes[j]
			old := short || aged(s.Created, p, now)
			if s.State != runtime.SandboxReady && !held[s.ID] && (whole || old && s != newest(pod)) {
				out = append(out, Removal{UID: pod.UID, Pod: pod, Sandbox: s})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Removal) int { return a.Sandbox.Created.Compare(b.Sandbox.Created) })
	return out
}
