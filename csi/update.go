package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
)

// updateWait bounds how long a sync of a pod that runs waits for what has changed of its volume, and a pod that has ended for its
// volume to be unstaged.
const updateWait = 5 * time.Second

// startUpdate updates a volume that is mounted, and waits for that for up to updateWait: a container of the pod may
// have to be started again. While another call for the volume is under way, it is left to the next sync.
func (m *Manager) startUpdate(ctx context.Context, o *operation) {
	s, release := m.tryAcquire(&o.id, o.uid)
	if s == nil {
		return
	}
	o.state = s
	update, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.mu.Lock()
	s.users[o.uid].stopUpdate = cancel
	m.mu.Unlock()
	m.beside(ctx, "update of volume "+o.id.name, release, func() {
		defer cancel()
		m.update(update, o)
	})
}

// beside does work for a volume, whose lock it releases in the end, in a goroutine. It waits until done is closed, which is at the end,
// for up to updateWait and until ctx is done.
func (m *Manager) beside(ctx context.Context, what string, release, work func()) (done <-chan struct{}) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer release()
		safe.Do(m.cfg.Logger, what, work)
	}()
	timer := time.NewTimer(m.updateWait)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	return ended
}

// update does what has changed for a volume that is mounted. What fails is tried at the
// next sync, and does not disturb the pod.
func (m *Manager) update(ctx context.Context, o *operation) {
	larger := m.isLarger(o, false) && o.size() > o.state.inUseSize
	driver, err := m.csiDriver(ctx, o.id.driver)
	republish := err == nil && driver.Spec.RequiresRepublish != nil && *driver.Spec.RequiresRepublish
	if !larger && !republish {
		return
	}
	err = m.prepare(ctx, o)
	prepared := err == nil
	if prepared && o.client.can[canStage] && o.v.PersistentVolume != nil {
		_, o.stagingPath = m.paths.staging(&o.id)
	}
	if prepared && republish {
		err = m.republish(ctx, o)
	}
	if err != nil && republish && ctx.Err() == nil {
		m.record(o.v.Pod, corev1.EventTypeWarning, "FailedMount", fmt.Sprintf("MountVolume.SetUp failed for volume %q: %v", o.v.Volume.Name, err))
	}
	errs := []error{err}
	if prepared && larger {
		err := m.expand(ctx, o, false)
		if err == nil {
			m.mu.Lock()
			o.entry = o.state.users[o.uid].entry
			m.mu.Unlock()
			err = m.completeRecord(o)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		m.cfg.Logger.Warn("volume not updated", logattr.PodUID(o.uid), slog.String("volume", o.id.name), logattr.Err(err))
	}
}

// republish publishes a volume once more, as its CSIDriver requires it.
func (m *Manager) republish(ctx context.Context, o *operation) error {
	if o.attachable {
		wait, cancel := context.WithTimeout(ctx, updateWait)
		defer cancel()
		var err error
		if o.publishContext, err = m.cfg.Attachments.Attached(wait, o.id.driver, o.id.handle); err != nil {
			return fmt.Errorf("volume is not attached: %w", err)
		}
	}
	if err := m.publish(ctx, o); err != nil {
		return err
	}
	return m.applyGroup(ctx, o) // the driver may have written new files
}
