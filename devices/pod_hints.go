package devices

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

var _ topology.PodProvider = (*Manager)(nil)

// PodHints implements topology.PodProvider. Resources whose devices do not say where they are have no
// hints.
func (m *Manager) PodHints(pod *corev1.Pod) [][]topology.Hint {
	if m.cfg.NUMANodes.Len() == 0 {
		return nil
	}
	names := map[corev1.ResourceName]bool{}
	for c := range podspec.Containers(pod) {
		for name := range c.Resources.Limits {
			names[name] = true
		}
	}
	var out [][]topology.Hint
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n := topology.MostTogether(pod, func(c *corev1.Container) int64 { return int64(m.requestedOf(pod, c, name)) })
		m.mu.Lock()
		if hints := m.podHints(pod, name, n); n > 0 && hints != nil {
			out = append(out, hints)
		}
		m.mu.Unlock()
	}
	return out
}

// podHints returns the hints for one resource, of which the containers of a pod request n together. m.mu is locked.
func (m *Manager) podHints(pod *corev1.Pod, name corev1.ResourceName, n int64) []topology.Hint {
	r := m.resources[name]
	if !r.hasTopology(m.cfg.NUMANodes) {
		return nil
	}
	own, complete := m.devicesOf(pod, name)
	if complete {
		n = int64(len(own))
		near := r.counter(own)
		return topology.MakeHints(r.nodes(m.cfg.NUMANodes), n, func(nodes topology.Set) (int64, int64) { return near(nodes), near(nodes) })
	}
	if len(r.unknown) > 0 { // some devices are in use
		return []topology.Hint{}
	}
	allNear, ownNear, freeNear := r.counter(slices.Collect(maps.Keys(r.devices))), r.counter(own), r.counter(m.freeBeside(name, own))
	kept := min(n, ownNear(m.cfg.NUMANodes)) // its other containers have these
	return topology.MakeHints(r.nodes(m.cfg.NUMANodes), n, func(nodes topology.Set) (int64, int64) {
		if ownNear(nodes) < kept {
			return allNear(nodes), 0
		}
		return allNear(nodes), freeNear(nodes)
	})
}

// devicesOf returns the devices of one resource that the containers of a pod have, and whether each has
// those that it requests. m.mu is locked.
func (m *Manager) devicesOf(pod *corev1.Pod, name corev1.ResourceName) (ids []string, complete bool) {
	complete = true
	for c := range podspec.Containers(pod) {
		q, ok := c.Resources.Limits[name]
		if !ok || q.IsZero() || podspec.IsFromClaim(pod, c.Name, name) {
			continue
		}
		own := m.pods[pod.UID][c.Name][name].IDs
		ids = append(ids, own...)
		complete = complete && int64(len(own)) == q.Value() && !m.resources[name].hasMissing(own)
	}
	slices.Sort(ids)
	return slices.Compact(ids), complete
}
