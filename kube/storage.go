package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/csiname"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/volume"
)

// Periods of Storage.
const (
	attachPollPeriod = time.Second      // of asking whether a volume is attached
	attachTimeout    = 2 * time.Minute  // as in the kubelet
	csiDriverAge     = time.Minute      // for which a CSIDriver is not asked for
	csiNodeRetry     = 10 * time.Second // after a failed write of the CSINode
	csiNodePeriod    = time.Minute      // of asking whether it, and the Node, are still as written
)

// nodeIDAnnotation has the ids of the node by driver, which attachers read.
const nodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"

// StorageConfig describes Storage.
type StorageConfig struct {
	// Dir keeps claims, PersistentVolumes and CSIDrivers of pods for a start without the API
	// server: absolute, of its own, 0700. "": they are not kept.
	Dir string
	// Pods returns the desired pods, and whether they are all known: what they refer to is
	// kept. Default: those of the agent with Options.
	Pods func() (desired []*corev1.Pod, synced bool)
	// Topology returns labels that say where the node is, according to its CSI drivers. It
	// must not block. A label that the Node already has with another value stays, and one that a node may not
	// set on itself is not set: drivers that have its key among their TopologyKeys are then left out of the
	// CSINode. Default: none.
	Topology func() map[string]string
}

// Storage is what the API server knows about volumes: claims and what they are bound to,
// CSIDrivers, attachments, and the CSINode of this node. It implements volume.Claims, and
// what package csi asks a cluster for. Pods whose volumes need no attacher start without the API
// server if they ran before: what they need is on disk. Run writes the CSINode; the other methods may be
// called from any goroutine.
type Storage struct {
	k       *Kube
	cfg     StorageConfig
	changed chan struct{}
	disk    objectDir
	prepare func() error // the directory, once

	mu      sync.Mutex // guards the fields below; never held during I/O
	drivers []storagev1.CSINodeDriver
	own     map[string]bool // drivers that were registered with this process
	inherit bool            // those of a previous process may come back
	cached  map[string]cachedDriver

	// Only Run reads and writes these.
	labels   map[string]string // of the topology, as this process wrote them
	rejected map[string]string // drivers that are left out of the CSINode: why, as logged
}

type cachedDriver struct {
	driver *storagev1.CSIDriver
	at     time.Time
}

var _ volume.Claims = (*Storage)(nil)

// Storage returns the volumes of the cluster. It validates cfg and does no I/O.
func (k *Kube) Storage(cfg StorageConfig) (*Storage, error) {
	if cfg.Dir != "" && !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("kube: StorageConfig.Dir: %q must be an absolute path", cfg.Dir)
	}
	if cfg.Pods == nil {
		cfg.Pods = k.desiredPods
	}
	s := &Storage{k: k, cfg: cfg, changed: make(chan struct{}, 1), own: map[string]bool{}, inherit: true, cached: map[string]cachedDriver{}, labels: map[string]string{}, disk: objectDir(cfg.Dir)}
	s.prepare = sync.OnceValue(s.disk.prepare)
	return s, nil
}

// found maps the error of a request for an object.
func found[T any](object T, err error) (T, error) {
	if apierrors.IsNotFound(err) {
		var none T
		return none, fmt.Errorf("%w: %w", podspec.ErrObjectNotFound, err)
	}
	return object, err
}

// Claim implements volume.Claims.
func (s *Storage) Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return readStored(ctx, s, podspec.Ref{Kind: claimKind, Namespace: namespace, Name: name}, func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
		return s.k.cfg.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

// PersistentVolume implements volume.Claims.
func (s *Storage) PersistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return readStored(ctx, s, podspec.Ref{Kind: volumeKind, Name: name}, func(ctx context.Context) (*corev1.PersistentVolume, error) {
		return s.k.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	})
}

// CSIDriver returns the CSIDriver object of a driver, which may be a minute old.
func (s *Storage) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	s.mu.Lock()
	last, ok := s.cached[name]
	s.mu.Unlock()
	if ok && time.Since(last.at) < csiDriverAge {
		return last.driver, nil
	}
	d, err := readStored(ctx, s, podspec.Ref{Kind: driverKind, Name: name}, func(ctx context.Context) (*storagev1.CSIDriver, error) {
		return s.k.cfg.Client.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
	})
	switch {
	case errors.Is(err, podspec.ErrObjectNotFound):
		return nil, err
	case err != nil && ok: // without a directory
		return last.driver, nil
	case err != nil:
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cached[name] = cachedDriver{d, time.Now()}
	return d, nil
}

// Attached blocks until the attacher of the cluster has attached a volume to this node, and
// the status of the node has it as used and as attached: it is not detached then. It returns
// the publish context of the attacher. It returns the last error after two minutes; one that wraps
// runtime.ErrVolumeLimit says that the driver could attach no more volumes to the node.
func (s *Storage) Attached(ctx context.Context, driver, handle string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	poll := time.NewTicker(attachPollPeriod)
	defer poll.Stop()
	var last error
	for {
		publishContext, err := s.attached(ctx, driver, handle)
		if err == nil {
			return publishContext, nil
		}
		if last == nil || ctx.Err() == nil { // a request that the end has cut off says nothing
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, last
		case <-poll.C:
		}
	}
}

func (s *Storage) attached(ctx context.Context, driver, handle string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	name := csiname.Attachment(driver, handle, s.k.cfg.NodeName)
	a, err := s.k.cfg.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("get VolumeAttachment %s: %w", name, err)
	case a.DeletionTimestamp != nil:
		return nil, fmt.Errorf("VolumeAttachment %s is being deleted", name)
	case a.Status.Attached: // whatever a later attempt has failed with
	case a.Status.AttachError != nil:
		return nil, attachError(a.Status.AttachError)
	default:
		return nil, fmt.Errorf("VolumeAttachment %s is not attached yet", name)
	}
	node, err := s.k.cfg.Client.CoreV1().Nodes().Get(ctx, s.k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node: %w", err)
	}
	unique := csiname.Unique(driver, handle)
	if !slices.Contains(node.Status.VolumesInUse, unique) {
		return nil, fmt.Errorf("volume %s is not in the volumesInUse of the node yet", unique)
	}
	if !slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return v.Name == unique }) {
		return nil, fmt.Errorf("volume %s is not in the volumesAttached of the node yet", unique)
	}
	return a.Status.AttachmentMetadata, nil
}

// codeResourceExhausted is the gRPC code of a driver that can attach no more volumes to a node.
const codeResourceExhausted = 8

func attachError(e *storagev1.VolumeError) error {
	if code := e.ErrorCode; code != nil && *code == codeResourceExhausted {
		return fmt.Errorf("attach volume to the node: %w: %s", runtime.ErrVolumeLimit, e.Message)
	}
	return fmt.Errorf("attach volume to the node: %s", e.Message)
}

// SetDrivers sets the drivers of this node, which Run writes. It does not block.
func (s *Storage) SetDrivers(drivers []storagev1.CSINodeDriver) {
	s.mu.Lock()
	s.drivers = slices.Clone(drivers)
	for _, d := range drivers {
		s.own[d.Name] = true
	}
	s.mu.Unlock()
	notify.Send(s.changed)
}

// Run keeps the CSINode of this node, and the labels and ids of its drivers on the Node, until
// ctx is done. It returns nil then. A driver that was registered with a previous process has 30
// seconds to come back; pods may be scheduled for its volumes meanwhile.
func (s *Storage) Run(ctx context.Context) error {
	if err := s.prepare(); err != nil {
		return fmt.Errorf("kube: directory of volumes: %w", err)
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	sweep := time.NewTicker(sweepPeriod)
	defer sweep.Stop()
	check := time.NewTicker(csiNodePeriod) // both are gone after the Node was deleted, and registered again
	defer check.Stop()
	forget := time.NewTimer(absentDriverDelay)
	defer forget.Stop()
	pending := true // something has changed that is not written
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sweep.C:
			s.sweep()
			continue
		case <-forget.C:
			s.mu.Lock()
			s.inherit = false
			s.mu.Unlock()
			pending = true
		case <-s.changed:
			pending = true
		case <-check.C:
		case <-retry.C:
		}
		switch err := s.write(ctx); {
		case err == nil || ctx.Err() != nil:
			pending = false
		case errors.Is(err, errNotRegistered):
			pending = true
			retry.Reset(attachPollPeriod)
		case !pending: // an outage; the next check finds what has changed
		default:
			s.k.cfg.Logger.Warn("CSINode not written", slog.String("node", s.k.cfg.NodeName), logattr.Err(err))
			retry.Reset(csiNodeRetry)
		}
	}
}

// errNotRegistered means that the Node, which owns the CSINode, is about to be created.
var errNotRegistered = errors.New("the Node does not exist yet")

// write writes the CSINode and the Node.
func (s *Storage) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout)
	defer cancel()
	node, err := s.k.cfg.Client.CoreV1().Nodes().Get(ctx, s.k.cfg.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return errNotRegistered
	}
	if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	client := s.k.cfg.Client.StorageV1().CSINodes()
	current, err := client.Get(ctx, node.Name, metav1.GetOptions{})
	isNew := apierrors.IsNotFound(err)
	if err != nil && !isNew {
		return err
	}
	if isNew {
		current = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		}}
	}
	drivers, labels := s.desiredDrivers(node, current.Spec.Drivers)
	if err := s.patchNode(ctx, node, drivers, labels); err != nil { // before the CSINode, whose topology keys are labels
		return err
	}
	if isNew {
		current.Spec.Drivers = drivers
		_, err = client.Create(ctx, current, metav1.CreateOptions{})
		return err
	}
	desired := current.DeepCopy()
	desired.Spec.Drivers = drivers
	for i := range desired.OwnerReferences {
		// With the UID of a Node that was deleted it would be garbage.
		if o := &desired.OwnerReferences[i]; o.Kind == "Node" && o.Name == node.Name {
			o.UID = node.UID
		}
	}
	if apiequality.Semantic.DeepEqual(current, desired) {
		return nil
	}
	if err := s.replace(ctx, current, desired); err != nil {
		return fmt.Errorf("CSINode %s: %w", node.Name, err)
	}
	return nil
}

// replace updates the CSINode. What a driver says of itself is immutable there, but for its volume limit since Kubernetes
// 1.36: where the API server rejects a change, the driver is removed first. A scheduler places no pods with its volumes meanwhile.
func (s *Storage) replace(ctx context.Context, current, desired *storagev1.CSINode) error {
	client := s.k.cfg.Client.StorageV1().CSINodes()
	_, err := client.Update(ctx, desired, metav1.UpdateOptions{})
	if !apierrors.IsInvalid(err) {
		return err
	}
	same := slices.DeleteFunc(slices.Clone(current.Spec.Drivers), func(d storagev1.CSINodeDriver) bool {
		return !slices.ContainsFunc(desired.Spec.Drivers, func(e storagev1.CSINodeDriver) bool { return apiequality.Semantic.DeepEqual(d, e) })
	})
	if len(same) == len(current.Spec.Drivers) || len(same) == len(desired.Spec.Drivers) {
		return err
	}
	removed := current.DeepCopy()
	removed.Spec.Drivers = same
	if removed, err = client.Update(ctx, removed, metav1.UpdateOptions{}); err != nil {
		return err
	}
	desired.ResourceVersion = removed.ResourceVersion
	_, err = client.Update(ctx, desired, metav1.UpdateOptions{})
	return err
}
