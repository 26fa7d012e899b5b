package cpumanager

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

// available is what one container of a pod can get. It is valid while m.mu is locked.
type available struct {
	cpus  topology.Set // all of them, as far as they are usable
	own   topology.Set // those that it has, or that are reserved for it
	ended topology.Set // those of init containers that have ended

	m         *Manager
	pod       types.UID
	container string
	lifetime  lifetime
}

// availableTo returns what a container can get. m.mu is locked.
func (m *Manager) availableTo(pod *corev1.Pod, container *corev1.Container) available {
	own := m.pods[pod.UID][container.Name].all().Minus(m.cfg.Reserved)
	ended := m.reusable(pod, container.Name)
	return available{
		cpus: m.usable(m.free().Union(own).Union(ended)), own: own, ended: ended,
		m: m, pod: pod.UID, container: container.Name, lifetime: lifetimeOf(pod, container),
	}
}

// keeps returns the n CPUs that the container has, if they are in these: what it has stays, whatever the options were.
func (av available) keeps(n int, in topology.Set) (topology.Set, bool) {
	own := av.own.Intersect(av.m.topology.Online())
	return own, n > 0 && own.Len() == n && own.IsSubset(in)
}

// lifetime says in which steps of its pod a container runs. There is one for each init container,
// and one for all regular containers. The zero value is that of the pod.
type lifetime struct {
	Step int  `json:"step,omitempty"` // in which it starts
	Once bool `json:"once,omitempty"` // it ends in that step, as ordinary init containers do
}

func lifetimeOf(pod *corev1.Pod, container *corev1.Container) lifetime {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == container.Name {
			return lifetime{Step: i, Once: !podspec.IsSidecar(c)}
		}
	}
	return lifetime{Step: len(pod.Spec.InitContainers)}
}

// includes reports whether the container runs in a step.
func (l lifetime) includes(step int) bool {
	return step == l.Step || step > l.Step && !l.Once
}

// reusable returns the CPUs of init containers that end before the container starts, and that
// no other container has taken over. Sidecars keep theirs. m.mu is locked.
func (m *Manager) reusable(pod *corev1.Pod, container string) topology.Set {
	state := m.pods[pod.UID]
	isInit := map[string]bool{}
	var ended, kept topology.Set
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == container {
			break
		}
		isInit[c.Name] = !podspec.IsSidecar(c)
	}
	for owner, a := range state {
		switch {
		case owner == container:
		case isInit[owner]:
			ended = ended.Union(a.CPUs)
		default:
			kept = kept.Union(a.CPUs)
		}
	}
	return ended.Minus(kept)
}
