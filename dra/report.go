package dra

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/text"
)

// DynamicResources returns the prepared devices of the claims that a container uses, as the pod
// resources API has them. The claims of templates are those that the status of the pod names. While
// the stored claims cannot be read, there are none. The caller owns the result.
func (m *Manager) DynamicResources(pod *corev1.Pod, container *corev1.Container) []*podresources.DynamicResource {
	used := containerClaims(pod, container)
	if len(used) == 0 {
		return nil
	}
	m.loadForReport()
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

// maxReportedDevices bounds the devices of one claim in the status of a container: what the API allows for a claim is less.
const maxReportedDevices = 128

// maxResourceIDLength bounds the names of devices there. Those of the Container Device Interface have no limit.
const maxResourceIDLength = 1024

// ResourceHealth implements podsync.HealthReporter (KEP-4680): it returns the health of the devices of each claim, or request of
// a claim, that the container names. Those of extended resources are left out, as by the kubelet: older API servers reject them.
func (m *Manager) ResourceHealth(pod *corev1.Pod, container *corev1.Container) []corev1.ResourceStatus {
	if len(container.Resources.Claims) == 0 {
		return nil
	}
	m.loadForReport()
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []corev1.ResourceStatus
	for _, used := range container.Resources.Claims {
		i := slices.IndexFunc(pod.Spec.ResourceClaims, func(entry corev1.PodResourceClaim) bool { return entry.Name == used.Name })
		if i < 0 {
			continue
		}
		name, err := claimName(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			continue // it is not made, and so not prepared
		}
		claim := m.claimOf(pod, name)
		if claim == nil {
			continue
		}
		if list := m.healthOf(claim, used.Request); len(list) > 0 {
			out = append(out, corev1.ResourceStatus{Name: resourceName(used), Resources: list})
		}
	}
	return out
}

// resourceName returns the name of what a container uses in its status.
func resourceName(used corev1.ResourceClaim) corev1.ResourceName {
	name := "claim:" + used.Name
	if used.Request != "" {
		name += "/" + used.Request
	}
	return corev1.ResourceName(name)
}

// healthOf returns the health of the prepared devices of a request of a claim, in the order of their drivers. Devices with
// one name are one, which is as healthy as the worst of them. m.mu is locked.
func (m *Manager) healthOf(claim *claimState, request string) []corev1.ResourceHealth {
	var out []corev1.ResourceHealth
	known := map[corev1.ResourceID]int{}
	for _, driver := range slices.Sorted(maps.Keys(claim.Drivers)) {
		if claim.Drivers[driver] == nil {
			continue
		}
		for _, d := range *claim.Drivers[driver] {
			if !d.isFor(request) {
				continue
			}
			c := m.condition(driver, d.id())
			h := corev1.ResourceHealth{ResourceID: d.resourceID(driver), Health: c.status}
			if c.message != "" {
				h.Message = &c.message
			}
			i, ok := known[h.ResourceID]
			switch {
			case !ok && len(out) < maxReportedDevices:
				known[h.ResourceID] = len(out)
				out = append(out, h)
			case ok && severity(h.Health) > severity(out[i].Health):
				out[i] = h
			}
		}
	}
	return out
}

// resourceID names a device in the status of a pod.
func (d device) resourceID(driver string) corev1.ResourceID {
	id := driver + "/" + d.Pool + "/" + d.Name
	if len(d.CDIDevices) > 0 {
		id = d.CDIDevices[0]
	}
	return corev1.ResourceID(text.Clip(id, maxResourceIDLength, "..."))
}

func severity(h corev1.ResourceHealthStatus) int {
	return slices.Index([]corev1.ResourceHealthStatus{corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnknown, corev1.ResourceHealthStatusUnhealthy}, h)
}

// loadForReport loads the stored claims, and logs once if that fails.
func (m *Manager) loadForReport() {
	m.file.ReportOnce(m.load(), func(err error) { m.cfg.Logger.Error("prepared resource claims not reported", logattr.Err(err)) })
}

// AnyDriver stands for all drivers in ClaimsInUse.
const AnyDriver = "<any>"

// ClaimsInUse returns the number of prepared claims by driver, and of all under AnyDriver: a claim may have devices of
// several drivers. While the stored claims cannot be read, there are none.
func (m *Manager) ClaimsInUse() map[string]int {
	m.loadForReport()
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := map[string]int{AnyDriver: 0}
	for _, c := range m.claims {
		if !c.isPrepared() {
			continue
		}
		counts[AnyDriver]++
		for driver := range c.Drivers {
			counts[driver]++
		}
	}
	return counts
}
