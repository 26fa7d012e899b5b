package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/pathname"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/volume"
)

// operation is one call of Mount.
type operation struct {
	v     volume.DriverVolume
	uid   types.UID
	id    volumeID
	state *volumeState
	entry record

	source   *corev1.CSIPersistentVolumeSource // of an inline volume what corresponds
	inline   *corev1.CSIVolumeSource           // nil for a PersistentVolume
	fsType   string
	access   corev1.PersistentVolumeAccessMode
	readOnly bool // of the source
	group    *int64

	// Set by prepare.
	client     *client
	driver     *storagev1.CSIDriver
	attachable bool

	publishContext map[string]string
	stagingPath    string
	mounted        bool // the mount table has the target; never set for a device
	hasLabels      bool // SELinux labels of the files can be changed
}

// newOperation checks what a pod wants to have mounted.
func (m *Manager) newOperation(v volume.DriverVolume) (*operation, error) {
	o := &operation{v: v, uid: v.Pod.UID, access: corev1.ReadWriteOnce}
	if sc := v.Pod.Spec.SecurityContext; sc != nil {
		o.group = sc.FSGroup
	}
	switch {
	case v.PersistentVolume != nil && v.PersistentVolume.Spec.CSI != nil:
		o.source = v.PersistentVolume.Spec.CSI
		o.id = volumeID{driver: o.source.Driver, handle: o.source.VolumeHandle, name: v.PersistentVolume.Name, block: v.Block}
		o.fsType, o.readOnly = o.source.FSType, o.source.ReadOnly
		if modes := v.PersistentVolume.Spec.AccessModes; len(modes) > 0 {
			o.access = modes[0]
		}
	case v.Volume.CSI != nil:
		o.inline = v.Volume.CSI
		o.source = &corev1.CSIPersistentVolumeSource{Driver: o.inline.Driver, VolumeAttributes: o.inline.VolumeAttributes}
		o.id = volumeID{driver: o.inline.Driver, handle: inlineHandle(o.uid, v.Volume.Name), name: v.Volume.Name}
		o.readOnly = o.inline.ReadOnly != nil && *o.inline.ReadOnly
		if o.inline.FSType != nil {
			o.fsType = *o.inline.FSType
		}
	default:
		return nil, errors.New("volume has no CSI source")
	}
	for what, s := range map[string]string{"UID": string(o.uid), "driver": o.id.driver, "volume": o.id.name} {
		if !pathname.IsElement(s) {
			return nil, fmt.Errorf("invalid %s %q", what, s)
		}
	}
	if o.id.handle == "" {
		return nil, errors.New("volumeHandle: required")
	}
	return o, nil
}

// prepare finds the driver and what it wants.
func (m *Manager) prepare(ctx context.Context, o *operation) (err error) {
	if o.client, err = m.client(o.id.driver); err != nil {
		return err
	}
	if o.driver, err = m.csiDriver(ctx, o.id.driver); err != nil {
		return err
	}
	mode := storagev1.VolumeLifecyclePersistent
	if o.inline != nil {
		mode = storagev1.VolumeLifecycleEphemeral
	}
	modes := o.driver.Spec.VolumeLifecycleModes
	if len(modes) == 0 {
		modes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	if !slices.Contains(modes, mode) {
		return fmt.Errorf("CSI driver %s has no %s volumes, as its CSIDriver says", o.id.driver, mode)
	}
	o.attachable = m.cfg.Attachments != nil && o.inline == nil && (o.driver.Spec.AttachRequired == nil || *o.driver.Spec.AttachRequired)
	if sc := o.v.Pod.Spec.SecurityContext; o.driver.Spec.SELinuxMount != nil && *o.driver.Spec.SELinuxMount && sc != nil && sc.SELinuxOptions != nil {
		m.cfg.Logger.Info("volume not mounted with its SELinux context", logattr.PodUID(o.uid), slog.String("volume", o.id.name),
			slog.String("reason", "the container runtime labels the files"))
	}
	return nil
}

// csiDriver returns the CSIDriver object of a driver.
func (m *Manager) csiDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	if m.cfg.Drivers == nil {
		return DefaultDriver(name), nil
	}
	d, err := m.cfg.Drivers.CSIDriver(ctx, name)
	switch {
	case errors.Is(err, podspec.ErrObjectNotFound) && m.cfg.Attachments == nil:
		return DefaultDriver(name), nil
	case errors.Is(err, podspec.ErrObjectNotFound): // as the API defaults its fields
		return &storagev1.CSIDriver{}, nil
	case err != nil:
		return nil, fmt.Errorf("CSIDriver %s: %w", name, err)
	}
	return d, nil
}

func (o *operation) lifecycle() string {
	if o.inline != nil {
		return ephemeral
	}
	return persistent
}

// isOneNode reports whether one node at a time may write to the volume.
func (o *operation) isOneNode() bool {
	if o.inline != nil {
		return true
	}
	return slices.ContainsFunc(o.v.PersistentVolume.Spec.AccessModes, func(mode corev1.PersistentVolumeAccessMode) bool {
		return mode == corev1.ReadWriteOnce || mode == corev1.ReadWriteOncePod
	})
}

// capability is the volume as the driver is asked for it, whose files are to be for a group, or for none.
func (o *operation) capability(group *int64) *spec.VolumeCapability {
	c := &spec.VolumeCapability{AccessMode: &spec.VolumeCapability_AccessMode{Mode: o.accessMode()}}
	if o.id.block {
		c.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
		return c
	}
	files := &spec.VolumeCapability_MountVolume{FsType: o.fsType}
	if o.v.PersistentVolume != nil {
		files.MountFlags = o.v.PersistentVolume.Spec.MountOptions
	}
	if group != nil && o.client.can[canMountGroup] {
		files.VolumeMountGroup = fmt.Sprint(*group)
	}
	c.AccessType = &spec.VolumeCapability_Mount{Mount: files}
	return c
}

func (o *operation) accessMode() spec.VolumeCapability_AccessMode_Mode {
	fine := o.client.can[canWriters] // the driver tells one pod from several on one node
	switch {
	case o.access == corev1.ReadOnlyMany:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case o.access == corev1.ReadWriteMany:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case o.access == corev1.ReadWriteOncePod && fine:
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case fine: // also of a volume in the spec of a pod: SINGLE_NODE_WRITER is deprecated for such a driver
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	return spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// publishSecret is the Secret for publishing; nil if there is none.
func (o *operation) publishSecret() *corev1.SecretReference {
	if o.inline == nil {
		return o.source.NodePublishSecretRef
	}
	if ref := o.inline.NodePublishSecretRef; ref != nil {
		return &corev1.SecretReference{Namespace: o.v.Pod.Namespace, Name: ref.Name}
	}
	return nil
}

// secrets reads a Secret.
func (o *operation) secrets(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	if o.v.Objects == nil {
		return nil, fmt.Errorf("secret %s/%s: this agent has no Secrets", ref.Namespace, ref.Name)
	}
	object, err := o.v.Objects.Object(ctx, podspec.Ref{Kind: podspec.Secret, Namespace: ref.Namespace, Name: ref.Name})
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	out := make(map[string]string, len(object.Data))
	for key, value := range object.Data {
		out[key] = string(value)
	}
	return out, nil
}

// context returns the volume context for publishing, with what the CSIDriver wants to know
// about the pod, and the secrets. hidden are the values that no message may have.
func (o *operation) context(ctx context.Context, secrets map[string]string) (volumeContext, allSecrets, hidden map[string]string, err error) {
	volumeContext = maps.Clone(o.source.VolumeAttributes)
	if volumeContext == nil {
		volumeContext = map[string]string{}
	}
	if info := o.driver.Spec.PodInfoOnMount; info != nil && *info {
		maps.Copy(volumeContext, map[string]string{
			"csi.storage.k8s.io/pod.name": o.v.Pod.Name, "csi.storage.k8s.io/pod.namespace": o.v.Pod.Namespace,
			"csi.storage.k8s.io/pod.uid": string(o.uid), "csi.storage.k8s.io/serviceAccount.name": o.v.Pod.Spec.ServiceAccountName,
			"csi.storage.k8s.io/ephemeral": fmt.Sprint(o.inline != nil),
		})
	}
	if len(o.driver.Spec.TokenRequests) == 0 {
		return volumeContext, secrets, secrets, nil
	}
	tokens, err := o.tokens(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	hidden = map[string]string{}
	maps.Copy(hidden, secrets)
	for audience, t := range tokens {
		hidden["token for "+audience] = t.Token
	}
	data, err := json.Marshal(tokens)
	if err != nil {
		return nil, nil, nil, err
	}
	if in := o.driver.Spec.ServiceAccountTokenInSecrets; in != nil && *in {
		allSecrets = map[string]string{}
		maps.Copy(allSecrets, secrets)
		allSecrets[tokensKey] = string(data) // whatever the Secret has
		return volumeContext, allSecrets, hidden, nil
	}
	volumeContext[tokensKey] = string(data)
	return volumeContext, secrets, hidden, nil
}
