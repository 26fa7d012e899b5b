package runtime

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// minGracePeriod is the minimum grace period of a container that is not stopped by force.
const minGracePeriod = time.Second

// MinStopPeriod is the minimum time between the stop signal and SIGKILL of a container that is not
// stopped by force, whatever its hook and other containers have left of a grace period that was not
// shorter itself.
const MinStopPeriod = 2 * time.Second

// ContainerStop is how one container is stopped. All hooks begin together, and so do the stop
// signals of one Stage; those of a stage follow when every container of the previous one has
// exited, or at the Deadline.
type ContainerStop struct {
	Container     string // name
	ContainerType ContainerType
	ID            string
	Stage         int
	// Deadline is when the container is killed if it still runs. The preStop hook
	// runs within that time. All stages share it: a sidecar gets the time that the
	// regular containers leave, but at least MinStopPeriod; see StopPeriod.
	Deadline time.Time
	PreStop  *corev1.LifecycleHandler // nil: none
	Forced   bool                     // no hook and no grace period
}

// RemainingGracePeriod returns the time for hook and stop signal if the stop begins at that
// time.
func (s ContainerStop) RemainingGracePeriod(at time.Time) time.Duration {
	if s.Forced {
		return 0
	}
	return max(s.Deadline.Sub(at), minGracePeriod)
}

// StopPeriod returns the time for a container to exit if it gets its stop signal at that time, of
// the grace period that it had when its stop began.
func (s ContainerStop) StopPeriod(at time.Time, grace time.Duration) time.Duration {
	if s.Forced {
		return 0
	}
	return max(s.Deadline.Sub(at), min(grace, MinStopPeriod))
}

// PlanTermination returns how the containers of a pod are stopped: all but the sidecars
// together, then the sidecars one by one in the reverse order of their start. It is
// pure. Exited containers are left out. Created ones are included, because a start may
// be in progress.
//
// pod may be a stub for a pod that is known from the runtime only. Then types and hooks
// come from the containers, and the newest sidecar is stopped first. Sandboxes are
// stopped after all containers.
func PlanTermination(pod *corev1.Pod, observed Pod, e Termination, now time.Time) []ContainerStop {
	forced := e.GracePeriod == 0
	deadline := now.Add(atLeastMinGrace(e.GracePeriod))
	if forced {
		deadline = now
	}
	var stops []ContainerStop
	for i := range observed.Containers {
		c := &observed.Containers[i]
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
			s.Stage = 1 + sidecarRank(pod, &observed, c.Name)
		}
		stops = append(stops, s)
	}
	slices.SortStableFunc(stops, func(a, b ContainerStop) int { return cmp.Compare(a.Stage, b.Stage) })
	compactStages(stops, func(s *ContainerStop) *int { return &s.Stage })
	return stops
}

// compactStages numbers the stages of a sorted list without gaps.
func compactStages[T any](list []T, stageOf func(*T) *int) {
	stage, previous := -1, -1
	for i := range list {
		own := stageOf(&list[i])
		if *own != previous {
			stage, previous = stage+1, *own
		}
		*own = stage
	}
}

// preStop returns the hook of the spec, or without a spec that of the container.
func preStop(spec *corev1.Container, c *Container) *corev1.LifecycleHandler {
	switch {
	case spec == nil:
		return c.PreStop
	case spec.Lifecycle == nil:
		return nil
	}
	return spec.Lifecycle.PreStop
}

// sidecarRank returns a number that is greater the earlier the sidecar of that name
// starts, and the later it is stopped: by the order in the spec, or by the creation
// time for a stub.
func sidecarRank(pod *corev1.Pod, observed *Pod, name string) int {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return len(pod.Spec.InitContainers) - i
		}
	}
	first := make(map[string]time.Time)
	for i := range observed.Containers {
		c := &observed.Containers[i]
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

func atLeastMinGrace(grace time.Duration) time.Duration { return max(grace, minGracePeriod) }
