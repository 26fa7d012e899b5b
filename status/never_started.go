package status

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// shouldHaveRun reports whether a container that has never run should have.
func (g *generator) shouldHaveRun(s slot) bool {
	switch s.kind {
	case runtime.Regular:
		return g.wasInitialized()
	case runtime.Init, runtime.Sidecar:
		return g.initShouldHaveRun(s.c.Name)
	default:
		return false
	}
}

// initShouldHaveRun reports whether an init container that has never run was the first one, or comes before one
// that has run. Without that a pod that has ended would be shown as one that initializes.
func (g *generator) initShouldHaveRun(name string) bool {
	list := g.pod.Spec.InitContainers
	i := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == name })
	return i == 0 || slices.ContainsFunc(list[i+1:], func(c corev1.Container) bool {
		if newest := g.report.Observed.LatestContainer(c.Name); newest != nil && newest.State != runtime.Created {
			return true
		}
		previous := find(g.previous.InitContainerStatuses, c.Name)
		return previous != nil && (previous.State.Running != nil || ended(previous) != nil)
	})
}

// wasInitialized reports whether the regular containers could start: immediately, or
// when the last init container had completed or the last sidecar had started.
func (g *generator) wasInitialized() bool {
	n := len(g.pod.Spec.InitContainers)
	if n == 0 {
		return true
	}
	for i := range g.pod.Spec.Containers {
		name := g.pod.Spec.Containers[i].Name
		previous := find(g.previous.ContainerStatuses, name)
		if g.report.Observed.LatestContainer(name) != nil || previous != nil && previous.ContainerID != "" {
			return true
		}
	}
	last := &g.pod.Spec.InitContainers[n-1]
	if podspec.IsSidecar(last) {
		// It counts once it has started, which its termination does not show.
		return isStarted(g.previous.InitContainerStatuses, last.Name)
	}
	if c := g.report.Observed.LatestContainer(last.Name); c != nil {
		return c.State == runtime.Exited && initSucceeded(g.terminated(c))
	}
	return isReady(g.previous.InitContainerStatuses, last.Name)
}
