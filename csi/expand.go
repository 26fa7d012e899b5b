package csi

import (
	"context"
	"fmt"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

// Expansions is an optional interface of Attachments: it gets the new size of a claim.
type Expansions interface {
	// Expanded is called after a driver has made a volume larger.
	Expanded(ctx context.Context, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) error
}

// size is the size of a PersistentVolume in bytes, 0 if it has none.
func (o *operation) size() int64 {
	if o.v.PersistentVolume == nil {
		return 0
	}
	return o.v.PersistentVolume.Spec.Capacity.Storage().Value()
}

// knownSize is the size of the claim before, 0 if that is not kept.
func (o *operation) knownSize() int64 {
	if o.v.Claim == nil {
		return 0
	}
	return o.v.Claim.Status.Capacity.Storage().Value()
}

// isLarger reports whether the PersistentVolume of a mounted volume has become larger since
// the driver last got its size.
func (m *Manager) isLarger(o *operation) bool {
	before := max(o.state.expanded, o.knownSize())
	return o.size() > before && !o.readOnly && !o.v.ReadOnly
}

// expand has the driver use all of a volume that has become larger. At the first mount of a
// volume whose size is not kept the driver is asked in any case. A failure is an error at
// the first mount, and an event later.
func (m *Manager) expand(ctx context.Context, o *operation, first bool) error {
	if !m.isLarger(o) {
		return nil
	}
	if !o.client.can[canExpand] {
		o.state.expanded = o.size()
		return nil
	}
	secrets, err := o.secrets(ctx, o.source.NodeExpandSecretRef)
	if err != nil {
		return err
	}
	defer m.warnSlow(o.v.Pod, o.v.Volume.Name, o.id.driver, "NodeExpandVolume")()
	_, err = call(ctx, o.client, "NodeExpandVolume", secrets, o.client.node.NodeExpandVolume, &spec.NodeExpandVolumeRequest{
		VolumeId: o.id.handle, VolumePath: m.paths.target(o.uid, &o.id), StagingTargetPath: o.stagingPath,
		CapacityRange: &spec.CapacityRange{RequiredBytes: o.size()}, VolumeCapability: o.capability(), Secrets: secrets,
	})
	if err != nil {
		m.record(o.v.Pod, corev1.EventTypeWarning, "VolumeResizeFailed", fmt.Sprintf("volume %q: %v", o.v.Volume.Name, err))
		return err
	}
	if e, ok := m.cfg.Attachments.(Expansions); ok && o.v.Claim != nil {
		if err := e.Expanded(ctx, o.v.Claim, o.v.PersistentVolume); err != nil {
			return fmt.Errorf("report the size of volume %s: %w", o.id.name, err)
		}
	}
	o.state.expanded = o.size()
	if !first {
		m.record(o.v.Pod, corev1.EventTypeNormal, "FileSystemResizeSuccessful", fmt.Sprintf("volume %q has %s now", o.v.Volume.Name, o.v.PersistentVolume.Spec.Capacity.Storage()))
	}
	return nil
}
