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
	"slices"
	"strconv"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/sublet-dev/agent/internal/csiname"
	"github.com/sublet-dev/agent/internal/fsgroup"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/volume"
)

// Mount implements volume.Driver: it stages the volume for the node and publishes it for
// the pod, and makes it larger if the PersistentVolume has become so. Of a volume that is
// mounted the driver hears only what has changed.
func (m *Manager) Mount(ctx context.Context, v volume.DriverVolume) (runtime.Volume, error) {
	if err := m.loadPod(v.Pod.UID); err != nil {
		return runtime.Volume{}, err
	}
	o, err := m.newOperation(v)
	if err != nil {
		return runtime.Volume{}, err
	}
	switch mounted, err := m.isMountedFor(o); {
	case err != nil:
		return runtime.Volume{}, err
	case mounted:
		update := *o // which may go on
		m.startUpdate(ctx, &update)
	default:
		if err := m.mount(ctx, o); err != nil {
			return runtime.Volume{}, err
		}
	}
	path, err := m.usablePath(o)
	readOnly := v.ReadOnly || o.readOnly
	return runtime.Volume{HostPath: path, ReadOnly: readOnly, SELinuxRelabel: o.hasLabels && !readOnly}, err
}

// isMountedFor reports whether a pod has its volume.
func (m *Manager) isMountedFor(o *operation) (bool, error) {
	m.mu.Lock()
	var u *user
	if s := m.volumes[o.id]; s != nil {
		u = s.users[o.uid]
	}
	isPublished := u != nil && u.published
	if u != nil {
		u.pod, u.volume = o.v.Pod, o.v.Volume.Name
	}
	m.mu.Unlock()
	if !isPublished {
		return false, nil
	}
	return m.isPresent(o)
}

func (m *Manager) mount(ctx context.Context, o *operation) error {
	stop := m.warnSlow(o.v.Pod, o.v.Volume.Name, o.id.driver, "an earlier call for this volume")
	s, release, err := m.acquire(ctx, o.id)
	stop()
	if err != nil {
		return err
	}
	defer release()
	o.state = s
	if err := m.checkOnePod(o); err != nil {
		return err
	}
	if err := m.prepare(ctx, o); err != nil {
		return err
	}
	if err := m.checkUnread(o); err != nil {
		return err
	}
	o.entry = record{
		Name: o.id.name, Handle: o.id.handle, Driver: o.id.driver, Node: m.cfg.NodeName, Lifecycle: o.lifecycle(),
		Attachable: flag(o.attachable), OnePod: flag(o.access == corev1.ReadWriteOncePod),
	}
	if o.attachable {
		o.entry.AttachmentID = csiname.Attachment(o.id.driver, o.id.handle, m.cfg.NodeName)
	}
	if err := m.remember(o); err != nil {
		return err
	}
	if o.attachable {
		var err error
		if o.publishContext, err = m.cfg.Attachments.Attached(ctx, o.id.driver, o.id.handle); err != nil {
			return fmt.Errorf("volume is not attached: %w", m.checkLimit(ctx, o, err))
		}
	}
	if err := m.stage(ctx, o); err != nil {
		return err
	}
	if err := m.publish(ctx, o); err != nil {
		return err
	}
	if err := m.applyGroup(ctx, o); err != nil {
		return err
	}
	if err := m.expand(ctx, o, true); err != nil {
		return err
	}
	return m.completeRecord(o)
}

// completeRecord records that a volume is mounted for a pod, and how large it is.
func (m *Manager) completeRecord(o *operation) error {
	o.entry.Boot, o.entry.Size = m.boot, strconv.FormatInt(o.state.expanded, 10)
	if err := writeRecord(m.paths.record(o.uid, &o.id), o.entry); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o.state.users[o.uid].entry, o.state.users[o.uid].published = o.entry, m.boot != ""
	return nil
}

func flag(b bool) string {
	if b {
		return "true"
	}
	return ""
}

// checkOnePod enforces ReadWriteOncePod: while a pod has such a volume, no other gets it.
// Any number of pods of one node may use a volume with another access mode.
func (m *Manager) checkOnePod(o *operation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, u := range o.state.users {
		if uid != o.uid && (o.access == corev1.ReadWriteOncePod || u.entry.OnePod != "") {
			return fmt.Errorf("volume %s has the access mode ReadWriteOncePod and is in use by the pod with UID %s", o.id.name, uid)
		}
	}
	return nil
}

// checkUnread is checkOnePod for pods whose directories cannot be read.
func (m *Manager) checkUnread(o *operation) error {
	if o.access != corev1.ReadWriteOncePod {
		return nil
	}
	m.mu.Lock()
	unread := slices.Sorted(maps.Keys(m.unread))
	m.mu.Unlock()
	for _, uid := range unread {
		if uid != o.uid && m.mayHave(uid, o) {
			return fmt.Errorf("volume %s has the access mode ReadWriteOncePod and may be in use by the pod with UID %s, whose volumes cannot be read", o.id.name, uid)
		}
	}
	return nil
}

// remember writes the record of a volume of a pod, before anything is done for it.
func (m *Manager) remember(o *operation) error {
	if o.id.block {
		link := m.paths.device(o.uid, o.id.name)
		if err := os.MkdirAll(filepath.Dir(link), 0o750); err != nil {
			return err
		}
		if err := os.Symlink(m.paths.target(o.uid, &o.id), link); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := writeRecord(m.paths.record(o.uid, &o.id), o.entry); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	damaged := damagedID{o.uid, o.id.name, o.id.block}
	u := o.state.users[o.uid]
	if u == nil {
		u = &user{unasked: !m.damaged[damaged]}
		o.state.users[o.uid] = u
	}
	delete(m.damaged, damaged)
	u.entry, u.published = o.entry, false
	u.pod, u.volume = o.v.Pod, o.v.Volume.Name
	return nil
}

// stage stages a volume, unless this process knows that it is staged.
func (m *Manager) stage(ctx context.Context, o *operation) error {
	if !o.client.can[canStage] || o.v.PersistentVolume == nil {
		return nil
	}
	_, path := m.paths.staging(&o.id)
	o.stagingPath = path
	mounted, exists, err := m.exists(path)
	if err != nil || mounted && o.state.staging != uncertain || exists && o.state.staging == stagedUnmounted {
		return err
	}
	o.state.staging = uncertain
	if err := m.recordStaged(o.state, o.attachable); err != nil {
		return err
	}
	if !exists {
		if err := os.MkdirAll(path, 0o750); err != nil {
			return err
		}
	}
	secrets, err := o.secrets(ctx, o.source.NodeStageSecretRef)
	if err != nil {
		return err
	}
	defer m.warnSlow(o.v.Pod, o.v.Volume.Name, o.id.driver, "NodeStageVolume")()
	_, err = call(ctx, o.client, "NodeStageVolume", secrets, o.client.node.NodeStageVolume, &spec.NodeStageVolumeRequest{
		VolumeId: o.id.handle, PublishContext: o.publishContext, StagingTargetPath: path, VolumeCapability: o.capability(o.group),
		Secrets: secrets, VolumeContext: o.source.VolumeAttributes,
	})
	if err != nil {
		return err
	}
	if mounted, err = m.isMounted(path); err != nil {
		return err
	}
	o.state.staging = stagedUnmounted
	if mounted {
		o.state.staging = stagedMounted
	}
	return nil
}

// recordStaged writes the record of a volume that may be staged. The caller holds its lock.
func (m *Manager) recordStaged(s *volumeState, attachable bool) error {
	dir, _ := m.paths.staging(&s.id)
	err := writeRecord(filepath.Join(dir, recordName), record{Name: s.id.name, Handle: s.id.handle, Driver: s.id.driver, Attachable: flag(attachable)})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.recorded, s.attachable = true, attachable
	return nil
}

// publish publishes a volume for a pod.
func (m *Manager) publish(ctx context.Context, o *operation) error {
	target := m.paths.target(o.uid, &o.id)
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil { // the driver makes the target
		return err
	}
	secrets, err := o.secrets(ctx, o.publishSecret())
	if err != nil {
		return err
	}
	volumeContext, secrets, hidden, err := o.context(ctx, secrets)
	if err != nil {
		return err
	}
	m.mu.Lock()
	o.state.users[o.uid].unasked = false
	m.mu.Unlock()
	defer m.warnSlow(o.v.Pod, o.v.Volume.Name, o.id.driver, "NodePublishVolume")()
	_, err = call(ctx, o.client, "NodePublishVolume", hidden, o.client.node.NodePublishVolume, &spec.NodePublishVolumeRequest{
		VolumeId: o.id.handle, PublishContext: o.publishContext, StagingTargetPath: o.stagingPath, TargetPath: target,
		VolumeCapability: o.capability(o.group), Readonly: o.v.ReadOnly || o.readOnly, Secrets: secrets, VolumeContext: volumeContext,
	})
	if err != nil {
		return err
	}
	present, err := m.isPresent(o)
	if err == nil && !present {
		err = fmt.Errorf("CSI driver %s: NodePublishVolume succeeded, but nothing is mounted at %s", o.id.driver, target)
	}
	return err
}

// applyGroup gives the files to the fsGroup of the pod, as the CSIDriver wants it.
func (m *Manager) applyGroup(ctx context.Context, o *operation) error {
	if o.group == nil || o.id.block || o.readOnly || o.v.ReadOnly || o.client.can[canMountGroup] {
		return nil
	}
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if p := o.driver.Spec.FSGroupPolicy; p != nil {
		policy = *p
	}
	switch {
	case policy == storagev1.NoneFSGroupPolicy:
		return nil
	case policy == storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy && (o.fsType == "" || !o.isOneNode()):
		return nil
	}
	path, err := filepath.EvalSymlinks(m.paths.target(o.uid, &o.id))
	if err != nil {
		return err
	}
	log := m.cfg.Logger.With(logattr.Pod(o.v.Pod), logattr.PodUID(o.uid), slog.String("volume", o.id.name))
	startTime := time.Now()
	err = fsgroup.Apply(ctx, path, *o.group, fsgroup.ChangePolicy(o.v.Pod), log)
	m.ended(ctx, volume.OperationApplyGroup, &o.id, startTime, err)
	return err
}
