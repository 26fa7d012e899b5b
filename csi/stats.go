package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/csiname"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/volume"
)

var _ volume.UsageReporter = (*Manager)(nil)

// Stats is the usage and health of a volume, as its driver reports it. What it does not
// report is 0.
type Stats struct {
	At                                  time.Time // of the answer; zero without one
	Capacity, Used, Available           int64     // bytes
	Inodes, InodesUsed, InodesAvailable int64
	// Abnormal is what is wrong with the volume, such as "DATA_LOSS DiskFailed: sector 7".
	// Empty: nothing is known.
	Abnormal []string
}

// Stats returns the latest usage of the volumes of a pod, by their names in it. Run measures
// it every HealthPeriod. What a driver does not answer any more is unknown.
func (m *Manager) Stats(uid types.UID) map[string]Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]Stats{}
	for _, s := range m.volumes {
		if u := s.users[uid]; u != nil && !u.stats.At.IsZero() {
			out[u.volume] = u.stats
		}
	}
	return out
}

// VolumeUsage implements volume.UsageReporter, with what Stats returns.
func (m *Manager) VolumeUsage(uid types.UID) map[string]runtime.FSUsage {
	out := map[string]runtime.FSUsage{}
	for name, s := range m.Stats(uid) {
		if s.Capacity == 0 && s.Used == 0 && s.Inodes == 0 && s.InodesUsed == 0 {
			continue // a driver that reports the health alone
		}
		out[name] = runtime.FSUsage{
			At: s.At, CapacityBytes: uint64(s.Capacity), UsedBytes: uint64(s.Used), AvailableBytes: uint64(s.Available),
			Inodes: uint64(s.Inodes), InodesUsed: uint64(s.InodesUsed),
		}
	}
	return out
}

// measure asks the driver about a volume, for each pod that has it.
func (m *Manager) measure(ctx context.Context, id volumeID) error {
	m.mu.Lock()
	c := m.clients[id.driver]
	var uids []types.UID
	if s := m.volumes[id]; s != nil {
		for uid, u := range s.users {
			switch {
			case c == nil, !c.can[canStats] && !c.can[canHealth]:
				u.stats = Stats{Abnormal: u.stats.Abnormal} // of a driver that is gone
			case u.published && u.pod != nil:
				uids = append(uids, uid)
			}
		}
	}
	m.mu.Unlock()
	var errs []error
	for _, uid := range uids {
		errs = append(errs, m.measureFor(ctx, c, id, uid))
	}
	return errors.Join(errs...)
}

func (m *Manager) measureFor(ctx context.Context, c *client, id volumeID, uid types.UID) error {
	target, staging := m.paths.target(uid, &id), ""
	if c.can[canStage] && !m.isInline(id, uid) {
		_, staging = m.paths.staging(&id)
	}
	stats := Stats{Abnormal: m.abnormal(id, uid)}
	var errs []error
	if c.can[canStats] {
		resp, err := call(ctx, c, "NodeGetVolumeStats", nil, c.node.NodeGetVolumeStats, &spec.NodeGetVolumeStatsRequest{
			VolumeId: id.handle, VolumePath: target, StagingTargetPath: staging,
		})
		if err == nil {
			stats.At = time.Now()
			stats.setUsage(resp.GetUsage())
		}
		errs = append(errs, err)
	}
	if c.can[canHealth] {
		resp, err := call(ctx, c, "NodeGetVolumeHealth", nil, c.node.NodeGetVolumeHealth, &spec.NodeGetVolumeHealthRequest{
			VolumeId: id.handle, VolumePublishPath: target, StagingTargetPath: staging,
		})
		if err == nil {
			stats.At = time.Now()
			stats.setHealth(resp.GetVolumeHealth())
		}
		errs = append(errs, err)
	}
	if ctx.Err() == nil {
		m.keepStats(id, uid, stats)
	}
	return errors.Join(errs...)
}

// abnormal returns what was last known to be wrong with a volume.
func (m *Manager) abnormal(id volumeID, uid types.UID) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.volumes[id]; s != nil && s.users[uid] != nil {
		return s.users[uid].stats.Abnormal
	}
	return nil
}

// isInline reports whether a volume is in the spec of its pod: such a volume is never staged.
func (m *Manager) isInline(id volumeID, uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.volumes[id]
	return s != nil && s.users[uid] != nil && s.users[uid].entry.Lifecycle == ephemeral
}

func (s *Stats) setUsage(usage []*spec.VolumeUsage) {
	for _, u := range usage {
		switch u.GetUnit() {
		case spec.VolumeUsage_BYTES:
			s.Capacity, s.Used, s.Available = max(u.GetTotal(), 0), max(u.GetUsed(), 0), max(u.GetAvailable(), 0)
		case spec.VolumeUsage_INODES:
			s.Inodes, s.InodesUsed, s.InodesAvailable = max(u.GetTotal(), 0), max(u.GetUsed(), 0), max(u.GetAvailable(), 0)
		default: // of a later version
		}
	}
}

// maxConditions bounds what a driver reports about one volume.
const maxConditions = 16

func (s *Stats) setHealth(health *spec.VolumeHealth) {
	s.Abnormal = nil
	for _, entry := range health.GetHealthStatuses() {
		text := strings.TrimSuffix(fmt.Sprintf("%s %s: %s", entry.GetStatus(), entry.GetReason(), entry.GetMessage()), ": ")
		if len(s.Abnormal) < maxConditions {
			s.Abnormal = append(s.Abnormal, withoutSecrets(text, nil))
		}
	}
}

// keepStats stores an answer, and records an event if the volume is worse than before.
func (m *Manager) keepStats(id volumeID, uid types.UID, stats Stats) {
	m.mu.Lock()
	var u *user
	if s := m.volumes[id]; s != nil {
		u = s.users[uid]
	}
	if u == nil { // unmounted meanwhile
		m.mu.Unlock()
		return
	}
	changed := !slices.Equal(u.stats.Abnormal, stats.Abnormal)
	u.stats = stats
	pod, name := u.pod, u.volume
	m.mu.Unlock()
	switch {
	case changed && len(stats.Abnormal) > 0:
		m.record(pod, corev1.EventTypeWarning, "VolumeConditionAbnormal", fmt.Sprintf("volume %q: %s", name, strings.Join(stats.Abnormal, "; ")))
	case changed:
		m.record(pod, corev1.EventTypeNormal, "VolumeConditionNormal", fmt.Sprintf("volume %q is well", name))
	}
}

// inUse returns the attachable volumes of pods, and those that may be staged, and never nil. m.mu must be held.
func (m *Manager) inUse() []corev1.UniqueVolumeName {
	names := map[corev1.UniqueVolumeName]bool{}
	for id, s := range m.volumes {
		if s.recorded && s.attachable {
			names[csiname.Unique(id.driver, id.handle)] = true
		}
		for _, u := range s.users {
			if u.entry.Attachable != "" {
				names[csiname.Unique(id.driver, id.handle)] = true
			}
		}
	}
	sorted := slices.AppendSeq(make([]corev1.UniqueVolumeName, 0, len(names)), maps.Keys(names))
	slices.Sort(sorted)
	return sorted
}
