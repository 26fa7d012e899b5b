package runtime

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// MinGrace is the least time that a container gets to end unless it is forced.
const MinGrace = time.Second

// Stop says how one container ends. Stops of one Stage begin together; a stage
// begins when every container of the former one has ended.
type Stop struct {
	Container string // its name
	Kind      Kind
	ID        string
	Stage     int
	// Deadline is when the container is killed if it still runs. The preStop hook
	// runs inside the time until then. All stages share it: a sidecar gets what
	// the regular containers leave, though never less than MinGrace; see Left.
	Deadline time.Time
	PreStop  *corev1.LifecycleHandler // nil: none
	Forced   bool                     // no hook and no grace at all
}

// Left returns how long the container may take if its end begins at that time:
// hook, stop signal and all.
func (s Stop) Left(at time.Time) time.Duration {
	if s.Forced {
		return 0
	}
	return max(s.Deadline.Sub(at), MinGrace)
}

// PlanTermination returns how the containers of a pod end: the regular ones (and
// whatever else does not serve others) at once, then the sidecars one by one in
// the reverse order of their start. It is pure. Containers that have ended are
// left out; ones that were made but never started are in, for a start may be
// under way.
//
// pod may be a stand-in for a pod of which only the runtime knows. Then kinds and
// hooks are those that the containers carry, and the newest sidecar ends first.
// Sandboxes are stopped after all of it.
func PlanTermination(pod *corev1.Pod, seen Pod, e Ending, now time.Time) []Stop {
	forced := e.Grace == 0
	deadline := now.Add(atLeastMinGrace(e.Grace))
	if forced {
		deadline = now
	}
	var stops []Stop
	for i := range seen.Containers {
		c := &seen.Containers[i]
		if c.State == Exited {
			continue
		}
		s := Stop{Container: c.Name, Kind: c.Kind, ID: c.ID, Deadline: deadline, Forced: forced}
		spec, kind := find(pod, c.Name)
		if spec != nil {
			s.Kind = kind
		}
		if c.State == Running && !forced {
			s.PreStop = preStop(spec, c)
		}
		if s.Kind == Sidecar {
			s.Stage = 1 + sidecarRank(pod, &seen, c.Name)
		}
		stops = append(stops, s)
	}
	slices.SortStableFunc(stops, func(a, b Stop) int { return cmp.Compare(a.Stage, b.Stage) })
	closeRanks(stops, func(s *Stop) *int { return &s.Stage })
	return stops
}

// closeRanks numbers the stages of a sorted list without gaps.
func closeRanks[T any](list []T, stageOf func(*T) *int) {
	stage, former := -1, -1
	for i := range list {
		own := stageOf(&list[i])
		if *own != former {
			stage, former = stage+1, *own
		}
		*own = stage
	}
}

// preStop is the hook of the spec, or without one what the container carries.
func preStop(spec *corev1.Container, c *Container) *corev1.LifecycleHandler {
	switch {
	case spec == nil:
		return c.PreStop
	case spec.Lifecycle == nil:
		return nil
	}
	return spec.Lifecycle.PreStop
}

// sidecarRank returns a number that is greater the earlier the sidecar of that
// name starts, and so the later it ends: by the spec, or for a stand-in by who was
// made first.
func sidecarRank(pod *corev1.Pod, seen *Pod, name string) int {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return len(pod.Spec.InitContainers) - i
		}
	}
	first := make(map[string]time.Time)
	for i := range seen.Containers {
		c := &seen.Containers[i]
		if at, ok := first[c.Name]; !ok || c.Created.Before(at) {
			first[c.Name] = c.Created
		}
	}
	n := 0
	for _, at := range first {
		if at.After(first[name]) {
			n++
		}
	}
	return n
}

func atLeastMinGrace(grace time.Duration) time.Duration { return max(grace, MinGrace) }
