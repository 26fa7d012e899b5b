package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/pathname"
	"github.com/sublet-dev/agent/volume"
)

// unstageRetry is when a volume is unstaged again that could not be. After that it is as often as HealthPeriod says.
const unstageRetry = 5 * time.Second

// Unmount implements volume.Driver: it unpublishes the volumes of a pod, and unstages those
// that no other pod has. A published volume whose driver is not registered stays, with its record,
// and is an error. A volume that cannot be unstaged is none: Run tries it again.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	if !pathname.IsElement(string(uid)) {
		return fmt.Errorf("invalid UID %q", uid)
	}
	if err := m.loadPod(uid); err != nil {
		return err
	}
	var ids []volumeID
	m.mu.Lock()
	for id, s := range m.volumes {
		if s.users[uid] != nil {
			ids = append(ids, id)
		}
	}
	m.mu.Unlock()
	var errs []error
	for _, id := range ids {
		if err := m.unmount(ctx, uid, id); err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", id.name, err))
		}
	}
	return errors.Join(append(errs, m.removeDamaged(ctx, uid))...)
}

func (m *Manager) unmount(ctx context.Context, uid types.UID, id volumeID) error {
	m.mu.Lock()
	if s := m.volumes[id]; s != nil && s.users[uid] != nil && s.users[uid].stopUpdate != nil {
		s.users[uid].stopUpdate()
	}
	m.mu.Unlock()
	s, release, err := m.acquire(ctx, id)
	if err != nil {
		return err
	}
	u, shared, err := m.takeFrom(ctx, s, uid)
	if err != nil || u == nil || shared {
		release()
		return err
	}
	return m.startUnstage(ctx, s, u, release)
}

// takeFrom takes a volume from a pod, with all that is on disk for it. It returns what was known of the pod, nil if another call has
// done that, and whether other pods have what is staged. The caller holds the lock of the volume.
func (m *Manager) takeFrom(ctx context.Context, s *volumeState, uid types.UID) (u *user, shared bool, err error) {
	m.mu.Lock()
	u, shared = s.users[uid], m.isUsed(&s.id, uid)
	m.mu.Unlock()
	if u == nil {
		return nil, shared, nil
	}
	if !u.unasked {
		startTime := time.Now()
		c, err := m.client(s.id.driver)
		if err == nil {
			stop := m.warnSlow(u.pod, u.volume, s.id.driver, "NodeUnpublishVolume")
			err = m.unpublish(ctx, c, uid, &s.id)
			stop()
		}
		m.ended(ctx, volume.OperationUnmount, &s.id, startTime, err)
		if err != nil {
			return u, shared, err
		}
	}
	if err := m.removeRecord(ctx, uid, &s.id); err != nil {
		return u, shared, err
	}
	m.mu.Lock()
	delete(s.users, uid)
	m.mu.Unlock()
	return u, shared, nil
}

// startUnstage unstages a volume, and waits for that for as long as for an update. Its last pod does not need it any more, and
// may have a successor that waits. The lock of the volume is released in the end.
func (m *Manager) startUnstage(ctx context.Context, s *volumeState, u *user, release func()) error {
	unstaging, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := m.beside(ctx, "unstage volume "+s.id.name, release, func() {
		defer cancel()
		defer m.warnSlow(u.pod, u.volume, s.id.driver, "NodeUnstageVolume")()
		if err := m.unstage(unstaging, s); err != nil && unstaging.Err() == nil {
			m.cfg.Logger.Warn("volume stays staged", slog.String("volume", s.id.name), logattr.Err(err))
			time.AfterFunc(unstageRetry, func() { notify.Send(m.changed) })
		}
	})
	if ctx.Err() != nil { // the agent ends
		cancel()
		<-done
		return ctx.Err()
	}
	return nil
}

// isUsed reports whether a pod besides the given one has what is staged for a volume, also by
// another PersistentVolume with the same handle. One whose record cannot be read may have it, until its
// pod is synced, which writes the record again, or has ended. m.mu must be held.
func (m *Manager) isUsed(id *volumeID, besides types.UID) bool {
	if m.othersUnread(besides) {
		return true
	}
	for d := range m.damaged {
		if d.uid != besides && m.mayShare(d, id) {
			return true
		}
	}
	for s := range m.sharing(id) {
		for uid := range s.users {
			if uid != besides || s.id.name != id.name {
				return true
			}
		}
	}
	return false
}

// mayShare reports whether a pod whose record is damaged may have what is staged for a volume. The record had the handle; in its place
// other records of that PersistentVolume count, and without any it may be the one of this volume. m.mu must be held.
func (m *Manager) mayShare(d damagedID, id *volumeID) bool {
	if d.block != id.block {
		return false
	}
	if d.block || d.name == id.name {
		return d.name == id.name
	}
	known := false
	for other := range m.volumes {
		if other.name == d.name && !other.block {
			known = true
			if other.sharesStaging(id) {
				return true
			}
		}
	}
	return !known
}

// othersUnread reports whether a pod besides the given one may have any volume. m.mu must be held.
func (m *Manager) othersUnread(besides types.UID) bool {
	return len(m.unread) > 1 || len(m.unread) == 1 && !m.unread[besides]
}

// unpublish takes a volume from a pod.
func (m *Manager) unpublish(ctx context.Context, c *client, uid types.UID, id *volumeID) error {
	target := m.paths.target(uid, id)
	_, err := call(ctx, c, "NodeUnpublishVolume", nil, c.node.NodeUnpublishVolume, &spec.NodeUnpublishVolumeRequest{VolumeId: id.handle, TargetPath: target})
	if err != nil && !isCode(err, codes.NotFound) { // a volume that does not exist is not published
		return err
	}
	return m.removeTarget(ctx, id.driver, "NodeUnpublishVolume", target)
}

// removeTarget removes what a driver leaves of a directory or file that it mounted on. What
// is still mounted stays, with what is in it.
func (m *Manager) removeTarget(ctx context.Context, driver, method, target string) error {
	if is, err := m.isMounted(target); err != nil || is {
		return errors.Join(err, fmt.Errorf("CSI driver %s: %s succeeded, but %s is still mounted", driver, method, target))
	}
	if err := mounts.Remove(ctx, filepath.Dir(target), filepath.Base(target)); err != nil {
		return fmt.Errorf("CSI driver %s: after %s: %w", driver, method, err)
	}
	return nil
}

// unstage takes a volume from the node. The caller holds its lock.
func (m *Manager) unstage(ctx context.Context, s *volumeState) (err error) {
	dir, path := m.paths.staging(&s.id)
	if _, err := os.Lstat(filepath.Join(dir, recordName)); errors.Is(err, fs.ErrNotExist) {
		if _, exists, err := m.exists(path); err != nil || !exists {
			return err // never staged
		}
		m.mu.Lock()
		attachable := s.attachable
		m.mu.Unlock()
		if err := m.recordStaged(s, attachable); err != nil { // it was lost: without it, this is not tried again
			return err
		}
	}
	c, err := m.client(s.id.driver)
	if err != nil {
		return err
	}
	startTime := time.Now()
	defer func() { m.ended(ctx, volume.OperationUnmountDevice, &s.id, startTime, err) }()
	if c.can[canStage] {
		m.doubtStaged(&s.id)
		_, err := call(ctx, c, "NodeUnstageVolume", nil, c.node.NodeUnstageVolume, &spec.NodeUnstageVolumeRequest{VolumeId: s.id.handle, StagingTargetPath: path})
		if err != nil && !isCode(err, codes.NotFound) {
			return err
		}
	}
	if err := m.removeTarget(ctx, s.id.driver, "NodeUnstageVolume", path); err != nil {
		return err
	}
	if err := removeRecordFile(filepath.Join(dir, recordName)); err != nil {
		return err
	}
	removeIfEmpty(dir)
	if s.id.block {
		removeIfEmpty(filepath.Dir(dir))
	}
	m.forgetStaged(&s.id)
	return nil
}

// doubtStaged notes that a volume may be unstaged, whatever its driver answers: the next pod has it staged once more.
// The caller holds the lock of all PersistentVolumes with its handle.
func (m *Manager) doubtStaged(id *volumeID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.sharing(id) {
		s.staging = uncertain
	}
}

// forgetStaged notes that a volume is not staged any more, for all PersistentVolumes with its handle. The
// caller holds their lock.
func (m *Manager) forgetStaged(id *volumeID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.sharing(id) {
		s.staging, s.expanded, s.recorded = uncertain, 0, false
		if s.refs == 0 && len(s.users) == 0 {
			delete(m.volumes, s.id)
		}
	}
}

// removeRecord removes what is on disk for a volume of a pod, last that by which it is found.
func (m *Manager) removeRecord(ctx context.Context, uid types.UID, id *volumeID) error {
	if !id.block {
		dir := m.paths.files(uid, id.name)
		if err := mounts.Remove(ctx, dir, "mount"); err != nil { // mounted meanwhile
			return err
		}
		if err := mounts.Remove(ctx, filepath.Dir(dir), id.name); err != nil {
			return err
		}
		removeIfEmpty(filepath.Dir(dir))
		return nil
	}
	link, entry := m.paths.device(uid, id.name), m.paths.record(uid, id)
	if err := removeRecordFile(entry); err != nil {
		return err
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) { // by which the record is found
		return err
	}
	removeIfEmpty(filepath.Dir(link), filepath.Dir(filepath.Dir(link)), filepath.Dir(m.paths.target(uid, id)), filepath.Dir(entry), filepath.Dir(filepath.Dir(entry)))
	return nil
}

// removeIfEmpty removes directories, if they are empty.
func removeIfEmpty(dirs ...string) {
	for _, dir := range dirs {
		_ = os.Remove(dir) // others use it
	}
}

// removeUnrecorded removes the directory of a volume without a record, unless something is in it.
func (m *Manager) removeUnrecorded(dir string) {
	if err := atomicfile.RemovePartial(filepath.Join(dir, recordName)); err != nil {
		m.cfg.Logger.Warn("directory of a staged volume not cleaned up", logattr.Err(err))
	}
	removeIfEmpty(dir)
	if parent := filepath.Dir(dir); filepath.Dir(parent) == filepath.Join(m.paths.plugin(), blockDirName) {
		removeIfEmpty(filepath.Join(filepath.Dir(parent), "publish", filepath.Base(parent)), parent)
	}
}

// removeDamaged removes volumes of a pod whose records cannot be read, unless something is
// mounted there.
func (m *Manager) removeDamaged(ctx context.Context, uid types.UID) error {
	list, err := m.paths.publishedFor(uid)
	errs := []error{err}
	for _, f := range list {
		if f.err == nil {
			continue
		}
		if is, err := m.isMounted(m.paths.target(uid, &f.id)); err != nil || is {
			errs = append(errs, errors.Join(f.err, err))
			continue
		}
		errs = append(errs, m.removeRecord(ctx, uid, &f.id))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.damaged, func(d damagedID, _ bool) bool { return d.uid == uid })
	return nil
}

// unstageOrphan unstages a volume that no pod has: its pod has vanished, or the agent was
// stopped in between.
func (m *Manager) unstageOrphan(ctx context.Context, id volumeID) error {
	m.mu.Lock()
	s := m.volumes[id]
	isOrphan := s != nil && s.refs == 0 && s.recorded && !m.isUsed(&id, "")
	m.mu.Unlock()
	if !isOrphan {
		return nil
	}
	s, release, err := m.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	m.mu.Lock()
	used := m.isUsed(&id, "")
	m.mu.Unlock()
	if _, err := m.client(id.driver); used || err != nil {
		return nil // its driver will register
	}
	if err := m.unstage(ctx, s); err != nil {
		return err
	}
	m.cfg.Logger.Info("orphaned volume unstaged", slog.String("volume", id.name), slog.String("driver", id.driver), logattr.Err(nil))
	return nil
}
