package dra

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/sublet-dev/agent/internal/logattr"
)

// DynamicResources returns the prepared devices of the claims that a container uses, as the pod
// resources API has them. The claims of templates are those that the status of the pod names. While
// the stored claims cannot be read, there are none. The caller owns the result.
func (m *Manager) DynamicResources(pod *corev1.Pod, container *corev1.Container) []*podresources.DynamicResource {
	used := containerClaims(pod, container)
	if len(used) == 0 {
		return nil
	}
	m.file.ReportOnce(m.load(), func(err error) { m.cfg.Logger.Error("prepared resource claims not reported", logattr.Err(err)) })
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*podresources.DynamicResource
	for _, entry := range podClaims(pod) {
		name, err := claimName(pod, &entry)
		if err != nil {
			continue // it is not made, and so not prepared
		}
		claim := m.claimOf(pod, name)
		if claim == nil {
			continue
		}
		if devices := claim.resources(used, entry.Name); len(devices) > 0 {
			out = append(out, &podresources.DynamicResource{ClaimName: claim.Name, ClaimNamespace: claim.Namespace, ClaimResources: devices})
		}
	}
	return out
}

// resources returns the prepared devices of a claim that a container uses by this name of its
// pod: each once, though the container may name several requests.
func (c *claimState) resources(used []corev1.ResourceClaim, name string) []*podresources.ClaimResource {
	var out []*podresources.ClaimResource
	for _, driver := range slices.Sorted(maps.Keys(c.Drivers)) {
		if c.Drivers[driver] == nil {
			continue
		}
		for _, d := range *c.Drivers[driver] {
			if !slices.ContainsFunc(used, func(r corev1.ResourceClaim) bool { return r.Name == name && d.isFor(r.Request) }) {
				continue
			}
			r := &podresources.ClaimResource{DriverName: driver, PoolName: d.Pool, DeviceName: d.Name}
			if d.ShareID != "" {
				r.ShareId = &d.ShareID
			}
			for _, id := range d.CDIDevices {
				r.CdiDevices = append(r.CdiDevices, &podresources.CDIDevice{Name: id})
			}
			out = append(out, r)
		}
	}
	return out
}
