package devices

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
)

// Allocation is what a container has of one resource.
type Allocation struct {
	Container string
	Resource  corev1.ResourceName
	Devices   []Device // by id; a device that its plugin does not list any more is unhealthy
	// CDIDevices are the names by which the runtime adds the devices.
	CDIDevices []string
}

// Allocations returns what the containers of a pod have, by container and resource. The
// caller owns the result. While the stored allocations cannot be read, there are none.
func (m *Manager) Allocations(uid types.UID) []Allocation {
	m.file.ReportOnce(m.load(), func(err error) { m.cfg.Logger.Error("device allocations not reported", logattr.Err(err)) })
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Allocation
	for _, container := range slices.Sorted(maps.Keys(m.pods[uid])) {
		byResource := m.pods[uid][container]
		for _, name := range slices.Sorted(maps.Keys(byResource)) {
			a := byResource[name]
			if a.Injection == nil || a.isNone() {
				continue
			}
			out = append(out, Allocation{Container: container, Resource: name, Devices: m.devices(name, a.IDs, a.NUMANodes), CDIDevices: slices.Clone(a.Injection.CDIDevices)})
		}
	}
	return out
}

// devices returns what is known of the devices with these ids; places are the NUMA nodes of those that no plugin lists. m.mu is locked.
func (m *Manager) devices(name corev1.ResourceName, ids []string, places map[string][]int64) []Device {
	out := make([]Device, len(ids))
	for i, id := range ids {
		out[i] = Device{ID: id, NUMANodes: slices.Clone(places[id])}
		if r := m.resources[name]; r != nil {
			if d, ok := r.devices[id]; ok {
				d.NUMANodes = slices.Clone(d.NUMANodes)
				out[i] = d
			}
		}
	}
	return out
}

// placesOf returns the NUMA nodes of those of the devices that say where they are; nil if none does.
func (r *resourceState) placesOf(ids []string) map[string][]int64 {
	var places map[string][]int64
	for _, id := range ids {
		if nodes := r.devices[id].NUMANodes; len(nodes) > 0 {
			if places == nil {
				places = map[string][]int64{}
			}
			places[id] = slices.Clone(nodes)
		}
	}
	return places
}

// Devices returns the devices of each resource that a plugin provides, sorted by id. The
// caller owns the result.
func (m *Manager) Devices() map[corev1.ResourceName][]Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[corev1.ResourceName][]Device{}
	for name, r := range m.resources {
		if r.plugin != nil {
			out[name] = m.devices(name, slices.Sorted(maps.Keys(r.devices)), nil)
		}
	}
	return out
}

// ResourceStatuses returns the health of the devices of a container as
// status.containerStatuses[].allocatedResourcesStatus has it (KEP-4680).
func (m *Manager) ResourceStatuses(uid types.UID, container string) []corev1.ResourceStatus {
	var out []corev1.ResourceStatus
	for _, a := range m.Allocations(uid) {
		if a.Container != container {
			continue
		}
		st := corev1.ResourceStatus{Name: a.Resource}
		m.mu.Lock()
		for _, d := range a.Devices {
			st.Resources = append(st.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(d.ID), Health: m.resources[a.Resource].health(d.ID)})
		}
		m.mu.Unlock()
		out = append(out, st)
	}
	return out
}

// HasUnreleased implements podsync.EarlyReleaser: it reports whether the pod has devices that are not released. A scheduler
// gives them to another pod once this one is reported as ended. While the stored allocations cannot be read, none are given to others.
func (m *Manager) HasUnreleased(pod *corev1.Pod) bool {
	if m.load() != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pods[pod.UID]) > 0
}
