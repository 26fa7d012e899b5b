package dra

import (
	"iter"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/text"
)

const (
	// defaultHealthTimeout is how long the health of a device is valid if its driver does not say, as in the kubelet.
	defaultHealthTimeout = 30 * time.Second
	// maxHealthTimeout bounds what a driver says, which may be more than a time.Duration can be.
	maxHealthTimeout = 365 * 24 * time.Hour
	// maxHealthDevices bounds the devices of a driver whose health is kept, as in the kubelet.
	maxHealthDevices = 16384
)

// deviceID identifies a device of a driver.
type deviceID struct{ pool, name string }

func (d device) id() deviceID { return deviceID{d.Pool, d.Name} }

// condition is the health of a device as it is reported.
type condition struct {
	status  corev1.ResourceHealthStatus
	message string
}

// deviceHealth is what a driver has reported of a device.
type deviceHealth struct {
	condition

	expiresAt time.Time // on the monotonic clock; what the driver says of the time of its report does not count
}

// healthTable has the health of the devices of a driver. It is not changed but replaced.
type healthTable map[deviceID]deviceHealth

// merge returns the table after a report, which may be nil: it has the devices of the report, and the others until their
// timeout has passed. Those above the limit, and those whose names no device can have, are ignored.
func (t healthTable) merge(report []*healthapi.DeviceHealth, now time.Time) (next healthTable, ignored int) {
	next = make(healthTable, min(max(len(t), len(report)), maxHealthDevices))
	for _, d := range report {
		id := deviceID{d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}
		_, known := next[id]
		if !id.isValid() || !known && len(next) >= maxHealthDevices {
			ignored++
			continue
		}
		next[id] = deviceHealth{conditionOf(d), now.Add(healthTimeout(d.GetHealthCheckTimeoutSeconds()))}
	}
	for id, h := range t {
		if _, known := next[id]; !known && now.Before(h.expiresAt) && len(next) < maxHealthDevices {
			next[id] = h
		}
	}
	return next, ignored
}

// expiresAt returns when the first device of the table expires, or the zero time for an empty table.
func (t healthTable) expiresAt() time.Time {
	var first time.Time
	for _, h := range t {
		if first.IsZero() || h.expiresAt.Before(first) {
			first = h.expiresAt
		}
	}
	return first
}

// isValid reports whether a device can have this name: no claim has one with another.
func (id deviceID) isValid() bool {
	return id.name != "" && len(id.name) <= validation.DNS1123LabelMaxLength && len(id.pool) <= resourcev1.PoolNameMaxLength
}

func conditionOf(d *healthapi.DeviceHealth) condition {
	c := condition{message: text.Clip(d.GetMessage(), corev1.ResourceHealthMessageMaxLength, "...")}
	switch d.GetHealth() {
	case healthapi.HealthStatus_HEALTHY:
		c.status = corev1.ResourceHealthStatusHealthy
	case healthapi.HealthStatus_UNHEALTHY:
		c.status = corev1.ResourceHealthStatusUnhealthy
	case healthapi.HealthStatus_UNKNOWN:
		fallthrough
	default: // what a newer API may have
		c.status = corev1.ResourceHealthStatusUnknown
	}
	return c
}

func healthTimeout(seconds int64) time.Duration {
	if seconds <= 0 {
		return defaultHealthTimeout
	}
	return time.Duration(min(seconds, int64(maxHealthTimeout/time.Second))) * time.Second
}

// condition returns the health of a device: what the driver that registered last says, of those that know it. m.mu is
// locked.
func (m *Manager) condition(driver string, id deviceID) condition {
	for _, d := range slices.Backward(m.drivers[driver]) {
		if h, ok := d.health[id]; ok {
			return h.condition
		}
	}
	return condition{status: corev1.ResourceHealthStatusUnknown}
}

// changeHealth calls f, which may change the tables of the drivers of this name, with m.mu locked. It returns the pods with
// devices that have another health then.
func (m *Manager) changeHealth(driver string, f func()) map[types.UID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := map[deviceID]condition{}
	for id := range m.prepared(driver) {
		before[id] = m.condition(driver, id)
	}
	f()
	affected := map[types.UID]bool{}
	for id, pods := range m.prepared(driver) {
		if before[id] != m.condition(driver, id) {
			for _, uid := range pods {
				affected[uid] = true
			}
		}
	}
	return affected
}

// prepared iterates over the devices that drivers of this name have prepared, and the pods that have each. m.mu is locked.
func (m *Manager) prepared(driver string) iter.Seq2[deviceID, []types.UID] {
	return func(yield func(deviceID, []types.UID) bool) {
		for _, c := range m.claims {
			list := c.Drivers[driver]
			if list == nil {
				continue
			}
			for _, d := range *list {
				if !yield(d.id(), c.Pods) {
					return
				}
			}
		}
	}
}

// NotifyHealth implements podsync.HealthReporter.
func (m *Manager) NotifyHealth(f func(uid types.UID)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners = append(m.listeners, f)
}

// notifyHealth calls the functions of NotifyHealth for these pods.
func (m *Manager) notifyHealth(pods map[types.UID]bool) {
	m.mu.Lock()
	listeners := slices.Clone(m.listeners)
	m.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		for _, f := range listeners {
			safe.Do(m.cfg.Logger, "notify of the health of devices", func() { f(uid) })
		}
	}
}
