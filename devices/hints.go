package devices

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

// The Manager provides devices that are near to NUMA nodes.
var _ topology.Provider = (*Manager)(nil)

// isNear reports whether a device is near to one of the nodes. One that does not say where it
// is is not.
func (d Device) isNear(nodes topology.Set) bool {
	return slices.ContainsFunc(d.NUMANodes, func(id int64) bool { return id >= 0 && id < 1<<20 && nodes.Contains(int(id)) })
}

// Hints implements topology.Provider. Resources whose devices do not say where they are have
// no hints.
func (m *Manager) Hints(pod *corev1.Pod, container *corev1.Container) [][]topology.Hint {
	if m.cfg.NUMANodes.Len() == 0 {
		return nil
	}
	var out [][]topology.Hint
	for _, name := range slices.Sorted(maps.Keys(container.Resources.Limits)) {
		if n := m.requestedOf(pod, container, name); n > 0 {
			m.mu.Lock()
			if hints := m.hints(pod, container.Name, name, n); hints != nil {
				out = append(out, hints)
			}
			m.mu.Unlock()
		}
	}
	return out
}

// requestedOf returns how many devices a container requests of this Manager.
func (m *Manager) requestedOf(pod *corev1.Pod, c *corev1.Container, name corev1.ResourceName) int {
	q := c.Resources.Limits[name]
	n, ok := m.requested(name, q.Value(), false)
	if !ok || podspec.IsFromClaim(pod, c.Name, name) {
		return 0
	}
	return n
}

// hints returns the hints for one resource. m.mu is locked.
func (m *Manager) hints(pod *corev1.Pod, container string, name corev1.ResourceName, n int) []topology.Hint {
	r := m.resources[name]
	if !r.hasTopology(m.cfg.NUMANodes) {
		return nil
	}
	ids := m.pods[pod.UID][container][name].IDs
	all, lent := ids, []string(nil)
	if len(ids) != n || r.hasMissing(ids) { // it has none yet, or gets others
		all = slices.Sorted(maps.Keys(r.devices))
		c, err := m.candidates(pod, container, name, n)
		if err != nil {
			return []topology.Hint{}
		}
		ids, lent = slices.Concat(c.reusable, c.free), c.reusable
	}
	// With others than those of init containers the pod would have more than it was scheduled with.
	allNear, lentNear, near := r.counter(all), r.counter(lent), r.counter(ids)
	lentToUse := min(int64(n), lentNear(m.cfg.NUMANodes))
	return topology.MakeHints(r.nodes(m.cfg.NUMANodes), int64(n), func(nodes topology.Set) (int64, int64) {
		if lentNear(nodes) < lentToUse {
			return allNear(nodes), 0
		}
		return allNear(nodes), near(nodes)
	})
}

// hasTopology reports whether any device is near to one of the nodes.
func (r *resourceState) hasTopology(nodes topology.Set) bool {
	if r == nil || r.plugin == nil {
		return false
	}
	for _, d := range r.devices {
		if d.isNear(nodes) {
			return true
		}
	}
	return false
}

// nodes returns the nodes to which any device is near. Hints name no others, as in the kubelet: without a set of nodes that
// suits all resources, what they have in common would be nodes without a device.
func (r *resourceState) nodes(known topology.Set) topology.Set {
	return topology.NewSet(slices.DeleteFunc(known.IDs(), func(id int) bool { return !r.hasTopology(topology.NewSet(id)) })...)
}

// counter returns what counts how many of the devices are near to nodes, for many sets of nodes: there may be many
// devices, but few places.
func (r *resourceState) counter(ids []string) func(nodes topology.Set) int64 {
	type place struct {
		nodes   []int64
		devices int64
	}
	var places []place
	for _, id := range ids {
		at := r.devices[id].NUMANodes
		i := slices.IndexFunc(places, func(p place) bool { return slices.Equal(p.nodes, at) })
		if i < 0 {
			i, places = len(places), append(places, place{nodes: at})
		}
		places[i].devices++
	}
	return func(nodes topology.Set) (n int64) {
		for _, p := range places {
			if (Device{NUMANodes: p.nodes}).isNear(nodes) {
				n += p.devices
			}
		}
		return n
	}
}

// prefer leaves only the devices near to the nodes, if these suffice. Otherwise the container gets
// all of them, and the plugin chooses the others.
func (c candidates) prefer(r *resourceState, nodes topology.Set, n int) candidates {
	if nodes.Len() == 0 {
		return c
	}
	c.near = nodes
	isFar := func(id string) bool { return !r.devices[id].isNear(nodes) }
	near := slices.DeleteFunc(slices.Clone(c.free), isFar)
	reusable := slices.DeleteFunc(slices.Clone(c.reusable), isFar)
	if len(near)+len(reusable) >= n {
		c.free, c.reusable, c.first = near, reusable, reusable
		return c
	}
	c.first = slices.Concat(c.reusable, near)
	c.free = slices.Concat(near, slices.DeleteFunc(c.free, func(id string) bool { return !isFar(id) }))
	return c
}

// Reserve implements topology.Provider. Resources without hints are not set aside.
func (m *Manager) Reserve(pod *corev1.Pod, container *corev1.Container, nodes topology.Set) error {
	for _, name := range slices.Sorted(maps.Keys(container.Resources.Limits)) {
		n := m.requestedOf(pod, container, name)
		if n == 0 || m.cfg.NUMANodes.Len() == 0 {
			continue
		}
		if err := m.reserve(pod, container.Name, name, n, nodes); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) reserve(pod *corev1.Pod, container string, name corev1.ResourceName, n int, nodes topology.Set) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.resources[name]
	own := m.pods[pod.UID][container][name]
	if own.isNone() || len(own.IDs) > 0 && len(own.IDs) != n || r.hasMissing(own.IDs) {
		own.near = nodes // for Inject, which knows whether the container runs so
		m.pods[pod.UID][container][name] = own
	}
	if len(own.IDs) > 0 || own.isNone() || !r.hasTopology(m.cfg.NUMANodes) {
		return nil
	}
	c, err := m.candidates(pod, container, name, n)
	if err != nil {
		return err
	}
	c = c.prefer(r, nodes, n)
	m.record(pod.UID, container, name, allocation{IDs: pick(c.first, slices.Concat(c.reusable, c.free), n), near: nodes})
	return nil
}

// KeepReserved implements topology.Provider.
func (m *Manager) KeepReserved(keep func(uid types.UID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, pod := range m.pods {
		if keep(uid) {
			continue
		}
		for container, byResource := range pod {
			for name, a := range byResource {
				if a.Injection == nil && a.near.Len() > 0 {
					m.forget(uid, container, name)
				}
			}
		}
	}
}
