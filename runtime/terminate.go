package runtime

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// MinGracePeriod is the least time that a container gets to end unless it is forced.
const MinGracePeriod = time.Second

// ContainerStop says how one container ends. Stops of one Stage begin together; a stage
// begins when every container of the former one has ended.
type ContainerStop struct {
	Container     string // its name
	ContainerType ContainerType
	ID            string
	Stage         int
	// Deadline is when the container is killed if it still runs. The preStop hook
	// runs inside the time until then. All stages share it: a sidecar gets what
	// the regular containers leave, though never less than MinGrace; see Left.
	Deadline time.Time
	PreStop  *corev1.LifecycleHandler // nil: none
	Forced   bool                     // no hook and no grace at all
}

// RemainingGracePeriod returns how long the container may take if its end begins at that time:
// hook, stop signal and all.
func (s ContainerStop) RemainingGracePeriod(at time.Time) time.Duration {
	if s.Forced {
		return 0
	}
	return max(s.Deadline.Sub(at), MinGracePeriod)
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
func PlanTermination(pod *corev1.Pod, seen Pod, e Termination, now time.Time) []ContainerStop {
	forced := e.GracePeriod == 0
	deadline := now.Add(atLeastMinGrace(e.GracePeriod))
	if forced {
		deadline = now
	}
	var stops []ContainerStop
	for i := range seen.Containers {
		c := &seen.Containers[i]
		if c.State == Exited {
			continue
		}
		s := ContainerStop{Container: c.Name, ContainerType: c.Type, ID: c.ID, Deadline: deadline, Forced: forced}
		spec, kind := find(pod, c.Name)
		if spec != nil {
			s.ContainerType = kind
		}
		if c.State == Running && !forced {
			s.PreStop = preStop(spec, c)
		}
		if s.ContainerType == Sidecar {
			s.Stage = 1 + sidecarRank(pod, &seen, c.Name)
		}
		stops = append(stops, s)
	}
	slices.SortStableFunc(stops, func(a, b ContainerStop) int { return cmp.Compare(a.Stage, b.Stage) })
	compactStages(stops, func(s *ContainerStop) *int { return &s.Stage })
	return stops
}

// compactStages numbers the stages of a sorted list without gaps.
func compactStages[T any](list []T, stageOf func(*T) *int) {
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

func atLeastMinGrace(grace time.Duration) time.Duration { return max(grace, MinGracePeriod) }
