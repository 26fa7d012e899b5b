package containergc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Policy controls which exited containers are kept.
type Policy struct {
	// MinAge is the minimum time since creation before something is removed, except of
	// deleted pods. Default: 0.
	MinAge time.Duration
	// MaxPerPodContainer is the number of exited containers kept for each container name
	// of a pod, or KeepAll or KeepUntilReplaced. Default: 1.
	MaxPerPodContainer int
	// MaxContainers is the number of exited containers kept on the node. Those that
	// pods need are kept above it. Default: 0, no limit.
	MaxContainers int
}

// Check returns all errors in the policy, joined. New does so too.
func (p Policy) Check() error {
	var errs []error
	if p.MaxPerPodContainer < KeepUntilReplaced {
		errs = append(errs, fmt.Errorf("invalid MaxPerPodContainer %d", p.MaxPerPodContainer))
	}
	if p.MinAge < 0 || p.MaxContainers < 0 {
		errs = append(errs, errors.New("MinAge and MaxContainers must not be negative"))
	}
	return errors.Join(errs...)
}

// Special values of Policy.MaxPerPodContainer.
const (
	KeepAll = -1
	// KeepUntilReplaced keeps the last exited container only until a newer one of its
	// name runs, because its exit code decides on the restart. It is the kubelet's 0.
	KeepUntilReplaced = -2
)

// PodState is the state of a pod as known to the pod workers.
type PodState uint8

// The pod states.
const (
	// PodDesired: the pod is desired, or it is unknown whether it is.
	PodDesired PodState = iota
	// PodTerminated: the pod has terminated but its status is still reported. Its
	// containers are removed to free disk space.
	PodTerminated
	// PodDeleted: no source contains the pod. Everything of it is removed.
	PodDeleted
	// PodEvicted: the pod was evicted and has terminated, and its source knows that. Its
	// containers and their logs are removed.
	PodEvicted
)

// podFacts is what is known about a pod when its state is decided.
type podFacts struct {
	desired  bool // a source contains it
	evicted  bool // and knows that it was evicted
	known    bool // it has a worker
	finished bool // its worker has nothing left to do

	removable    bool // if it is unknown: all sources have synced
	mayBeDesired bool // its own source has not synced, and may still contain it
}

// state decides what may be removed of a pod. It is pure. In doubt the pod is desired.
func (f podFacts) state() PodState {
	switch {
	case f.finished && f.evicted:
		return PodEvicted
	case f.finished && f.desired:
		return PodTerminated
	case f.finished:
		return PodDeleted
	case !f.desired && !f.known && f.removable && !f.mayBeDesired:
		return PodDeleted
	}
	return PodDesired // its worker needs its containers, or is about to be started
}

// Removal is a container to remove or, if Container is nil, a sandbox.
type Removal struct {
	UID       types.UID
	Container *runtime.Container
	Sandbox   *runtime.Sandbox
	Pod       *runtime.Pod // the owner
	Reason    Reason
}

// Reason is why something is removed.
type Reason string

// The reasons.
const (
	ReasonPodDeleted    Reason = "its pod was deleted"
	ReasonPodEvicted    Reason = "its pod was evicted"
	ReasonDiskUsage     Reason = "the disk is full and its pod has terminated"
	ReasonReplaced      Reason = "newer ones of its name are kept"
	ReasonMaxContainers Reason = "the node has too many exited containers"
	ReasonUnused        Reason = "its containers are removed and a newer sandbox exists"
)

// because returns removals with a reason.
func because(r Reason, removals []Removal) []Removal {
	for i := range removals {
		removals[i].Reason = r
	}
	return removals
}

// Plan returns what to remove, in order: containers, the oldest first, then sandboxes,
// and those of deleted and evicted pods before all others. It is pure. A sandbox is only included
// if all its containers are; if one cannot be removed, its sandbox must be kept.
//
// urgent means that disk space is needed: then terminated pods count as deleted, and
// MinAge is ignored.
func Plan(pods []runtime.Pod, podState func(types.UID) PodState, p Policy, urgent bool, now time.Time) []Removal {
	var deleted, rest []*runtime.Pod
	reasons := map[types.UID]Reason{}
	for i := range pods {
		if !hasRemains(&pods[i]) {
			continue
		}
		if reason := whyEnded(podState(pods[i].UID), urgent); reason != "" {
			deleted = append(deleted, &pods[i])
			reasons[pods[i].UID] = reason
		} else {
			rest = append(rest, &pods[i])
		}
	}
	var ofDeleted, required, optional []Removal
	for _, pod := range deleted {
		ofDeleted = append(ofDeleted, allExited(pod)...)
	}
	exited := 0
	for _, pod := range rest {
		must, may, kept := excess(pod, p, urgent, now)
		required, optional, exited = append(required, because(ReasonReplaced, must)...), append(optional, may...), exited+len(may)+kept
	}
	byAge(optional)
	if p.MaxContainers > 0 && exited > p.MaxContainers {
		required = append(required, because(ReasonMaxContainers, optional[:min(len(optional), exited-p.MaxContainers)])...)
	}
	byAge(ofDeleted)
	byAge(required)
	ofDeleted = append(ofDeleted, sandboxes(deleted, ofDeleted, func(*runtime.Pod, *runtime.Sandbox) bool { return true })...)
	for i := range ofDeleted {
		ofDeleted[i].Reason = reasons[ofDeleted[i].UID]
	}
	return slices.Concat(ofDeleted, required, because(ReasonUnused, sandboxes(rest, required, func(pod *runtime.Pod, s *runtime.Sandbox) bool {
		return s != newest(pod) && (urgent || aged(s.Created, p, now))
	})))
}

// whyEnded returns why all containers of a pod are removed that do not run, or "".
func whyEnded(s PodState, urgent bool) Reason {
	switch {
	case s == PodDeleted:
		return ReasonPodDeleted
	case s == PodEvicted:
		return ReasonPodEvicted
	case s == PodTerminated && urgent:
		return ReasonDiskUsage
	}
	return ""
}

// hasRemains reports whether a pod has something that could be removed. Most pods have not.
func hasRemains(pod *runtime.Pod) bool {
	for i := range pod.Containers {
		if s := pod.Containers[i].State; s == runtime.Exited || s == runtime.Created {
			return true
		}
	}
	for i := range pod.Sandboxes {
		if pod.Sandboxes[i].State != runtime.SandboxReady {
			return true
		}
	}
	return false
}

// allExited returns all containers of a pod that do not run.
func allExited(pod *runtime.Pod) (all []Removal) {
	for _, c := range newestFirst(pod) {
		if c.State == runtime.Exited || c.State == runtime.Created {
			all = append(all, Removal{UID: pod.UID, Pod: pod, Container: c})
		}
	}
	return all
}

// excess returns the containers that must be removed of a pod that is not deleted, those
// that may be removed in addition, and the number of exited ones that are always kept.
func excess(pod *runtime.Pod, p Policy, urgent bool, now time.Time) (must, may []Removal, kept int) {
	count, runs := make(map[string]int), make(map[string]bool)
	for _, c := range newestFirst(pod) {
		r := Removal{UID: pod.UID, Pod: pod, Container: c}
		old := urgent || aged(c.Created, p, now)
		switch c.State {
		case runtime.Unknown: // it may be running
		case runtime.Running:
			runs[c.Name] = true
		case runtime.Created:
			// In an old sandbox it will never start. In the newest one it may be about
			// to start.
			if old && !inNewest(pod, c) {
				must = append(must, r)
			}
		case runtime.Exited:
			count[c.Name]++
			n := count[c.Name]
			switch {
			case old && p.exceeded(n, runs[c.Name]):
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

// exceeded reports whether the nth exited container of a name, counted from the newest,
// is not kept. runs reports whether a newer one runs.
func (p Policy) exceeded(n int, runs bool) bool {
	switch p.MaxPerPodContainer {
	case KeepAll:
		return false
	case KeepUntilReplaced:
		return n > 1 || runs
	}
	return n > max(p.MaxPerPodContainer, 1)
}

// newestFirst returns the pod's containers by attempt, because clocks can be set back.
func newestFirst(pod *runtime.Pod) []*runtime.Container {
	list := make([]*runtime.Container, len(pod.Containers))
	for i := range pod.Containers {
		list[i] = &pod.Containers[i]
	}
	slices.SortStableFunc(list, func(a, b *runtime.Container) int { return cmp.Compare(b.Attempt, a.Attempt) })
	return list
}

// aged reports whether something is old enough to be removed. So is what was created in
// the future: the clock was set back, and it could be kept for years.
func aged(created time.Time, p Policy, now time.Time) bool {
	return created.After(now) || now.Sub(created) >= p.MinAge
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
	slices.SortFunc(list, func(a, b Removal) int {
		return cmp.Or(a.Container.Created.Compare(b.Container.Created), cmp.Compare(a.Container.ID, b.Container.ID))
	})
}

// sandboxes plans the removal of sandboxes that are not ready, will be empty, and may be
// removed.
func sandboxes(pods []*runtime.Pod, containers []Removal, may func(*runtime.Pod, *runtime.Sandbox) bool) []Removal {
	removed := make(map[string]bool, len(containers))
	for _, r := range containers {
		removed[r.Container.ID] = true
	}
	var out []Removal
	for _, pod := range pods {
		used := make(map[string]bool)
		for j := range pod.Containers {
			if c := &pod.Containers[j]; !removed[c.ID] {
				used[c.SandboxID] = true
			}
		}
		for j := range pod.Sandboxes {
			if s := &pod.Sandboxes[j]; s.State != runtime.SandboxReady && !used[s.ID] && may(pod, s) {
				out = append(out, Removal{UID: pod.UID, Pod: pod, Sandbox: s})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Removal) int { return a.Sandbox.Created.Compare(b.Sandbox.Created) })
	return out
}
