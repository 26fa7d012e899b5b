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
	// MaxPerPodContainer is how many dead containers of one name are kept in a pod, or
	// KeepAll or KeepNeeded. Default: 1.
	MaxPerPodContainer int
	// MaxContainers is how many dead containers are kept in all. Those that each pod
	// still needs stay though they are more. Default: 0, which is no limit.
	MaxContainers int
}

// Values of Policy.PerContainer that are no numbers.
const (
	KeepAll = -1
	// KeepUntilReplaced keeps a dead container only while nothing newer of its name runs:
	// then its exit code decides what comes next. It is the kubelet's 0.
	KeepUntilReplaced = -2
)

// PodState says what is known of a pod besides what runs of it.
type PodState uint8

// The standings.
const (
	// PodDesired: it runs, or may run, or it is not known whether it should.
	PodDesired PodState = iota
	// PodTerminated: it is over for good, but its status is still told. What is left of it
	// goes when disk is short.
	PodTerminated
	// PodDeleted: nobody wants to know of it any more. All that is left of it goes.
	PodDeleted
)

// Removal is one thing to remove: a container, or if Container is nil a sandbox.
type Removal struct {
	UID       types.UID
	Container *runtime.Container
	Sandbox   *runtime.Sandbox
	Pod       *runtime.Pod // that it belongs to
}

// Plan returns what is to be removed, in order: containers, the oldest first,
// then sandboxes, and all of this for pods that are gone before others. It is
// pure. A sandbox is only in it if every container of it is too: if one of those
// does not go, the sandbox must stay.
//
// short says that disk is short: then pods that have ended count as gone, and
// MinAge does not count.
func Plan(pods []runtime.Pod, standing func(types.UID) PodState, p Policy, short bool, now time.Time) []Removal {
	var gone, rest []*runtime.Pod
	for i := range pods {
		if s := standing(pods[i].UID); s == PodDeleted || s == PodTerminated && short {
			gone = append(gone, &pods[i])
		} else {
			rest = append(rest, &pods[i])
		}
	}
	var whole, sure, spare []Removal
	for _, pod := range gone {
		whole = append(whole, allDead(pod)...)
	}
	dead := 0
	for _, pod := range rest {
		must, may, kept := tooMany(pod, p, short, now)
		sure, spare, dead = append(sure, must...), append(spare, may...), dead+len(may)+kept
	}
	byAge(spare)
	if p.MaxContainers > 0 && dead > p.MaxContainers {
		sure = append(sure, spare[:min(len(spare), dead-p.MaxContainers)]...)
	}
	byAge(whole)
	byAge(sure)
	whole = append(whole, sandboxes(gone, whole, func(*runtime.Pod, *runtime.Sandbox) bool { return true })...)
	return slices.Concat(whole, sure, sandboxes(rest, sure, func(pod *runtime.Pod, s *runtime.Sandbox) bool {
		return s != newest(pod) && (short || aged(s.Created, p, now))
	}))
}

// allDead are the containers to remove of a pod of which nothing is to stay.
func allDead(pod *runtime.Pod) (all []Removal) {
	for _, c := range newestFirst(pod) {
		if c.State == runtime.Exited || c.State == runtime.Created {
			all = append(all, Removal{UID: pod.UID, Pod: pod, Container: c})
		}
	}
	return all
}

// tooMany are the containers to remove of a pod that is still told of, those that
// may go besides, and how many dead ones stay whatever happens.
func tooMany(pod *runtime.Pod, p Policy, short bool, now time.Time) (must, may []Removal, kept int) {
	seen, runs := make(map[string]int), make(map[string]bool)
	for _, c := range newestFirst(pod) {
		r := Removal{UID: pod.UID, Pod: pod, Container: c}
		old := short || aged(c.Created, p, now)
		switch c.State {
		case runtime.Unknown: // it may be alive
		case runtime.Running:
			runs[c.Name] = true
		case runtime.Created:
			// Made in a sandbox that is no more, it will never start. In the newest
			// one a start may be under way.
			if old && !inNewest(pod, c) {
				must = append(must, r)
			}
		case runtime.Exited:
			seen[c.Name]++
			n := seen[c.Name]
			switch {
			case old && p.tooMany(n, runs[c.Name]):
				must = append(must, r)
			case old && n > 1:
				may = append(may, r)
			default:
				kept++
			}
		}
	}
	return must, may, kept
}

// tooMany reports whether the nth dead container of a name, the newest being the
// first, is one too many. runs says that a newer one of the name does.
func (p Policy) tooMany(n int, runs bool) bool {
	switch p.MaxPerPodContainer {
	case KeepAll:
		return false
	case KeepUntilReplaced:
		return n > 1 || runs
	}
	return n > max(p.MaxPerPodContainer, 1)
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

// sandboxes plans the removal of those that are dead, will be empty, and may go.
func sandboxes(pods []*runtime.Pod, going []Removal, may func(*runtime.Pod, *runtime.Sandbox) bool) []Removal {
	goes := make(map[string]bool, len(going))
	for _, r := range going {
		goes[r.Container.ID] = true
	}
	var out []Removal
	for _, pod := range pods {
		held := make(map[string]bool)
		for j := range pod.Containers {
			if c := &pod.Containers[j]; !goes[c.ID] {
				held[c.SandboxID] = true
			}
		}
		for j := range pod.Sandboxes {
			if s := &pod.Sandboxes[j]; s.State != runtime.SandboxReady && !held[s.ID] && may(pod, s) {
				out = append(out, Removal{UID: pod.UID, Pod: pod, Sandbox: s})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Removal) int { return a.Sandbox.Created.Compare(b.Sandbox.Created) })
	return out
}
