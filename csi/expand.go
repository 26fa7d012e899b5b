package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/volume"
)

// Expansions is an optional interface of Attachments: it gets what becomes of the expansion of a claim
// on this node, for the claim's status (KEP-1790). An error of it is reported with the volume, and the
// expansion is tried again.
type Expansions interface {
	// Expanding is called before a driver is asked to expand a volume whose claim waits for that.
	Expanding(ctx context.Context, claim *corev1.PersistentVolumeClaim) error
	// Expanded is called after a driver has made a volume larger: to the size that the claim's status has allocated, if it has
	// one, or to that of the PersistentVolume.
	Expanded(ctx context.Context, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) error
	// ExpansionFailed is called after a driver has ended an expansion with an error. If it is
	// infeasible, the driver is not asked again while the claim's status says so: the resizer of the
	// cluster has to change its size first.
	ExpansionFailed(ctx context.Context, claim *corev1.PersistentVolumeClaim, reason error, infeasible bool) error
}

// expansions returns what gets the expansion of the volume's claim, or nil.
func (m *Manager) expansions(o *operation) Expansions {
	e, ok := m.cfg.Attachments.(Expansions)
	if !ok || o.v.Claim == nil {
		return nil
	}
	return e
}

// resizeStatus is the status of the expansion of the claim. It is "" if there is none, or with a
// resizer of a cluster that does not know it.
func (o *operation) resizeStatus() corev1.ClaimResourceStatus {
	if o.v.Claim == nil {
		return ""
	}
	return o.v.Claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

// capacity is the size that the volume is to have on the node: what the resizer of a cluster has allocated for the claim, if it
// keeps that, or the size of the PersistentVolume.
func (o *operation) capacity() *resource.Quantity {
	if o.v.PersistentVolume == nil {
		return &resource.Quantity{}
	}
	if o.v.Claim != nil {
		if allocated, ok := o.v.Claim.Status.AllocatedResources[corev1.ResourceStorage]; ok {
			return &allocated
		}
	}
	return o.v.PersistentVolume.Spec.Capacity.Storage()
}

// size is the capacity in bytes, 0 if the volume has none.
func (o *operation) size() int64 { return o.capacity().Value() }

// knownSize is the size of the claim before, 0 if that is not kept.
func (o *operation) knownSize() int64 {
	if o.v.Claim == nil {
		return 0
	}
	return o.v.Claim.Status.Capacity.Storage().Value()
}

// isLarger reports whether the PersistentVolume of a mounted volume has become larger since
// the driver last got its size, and the driver may be asked to expand it.
func (m *Manager) isLarger(o *operation, first bool) bool {
	before := max(o.state.expanded, o.knownSize())
	if !first && o.state.expanded > 0 && o.isExpandedElsewhere() {
		before = o.state.expanded
	}
	return o.size() > before && !o.readOnly && !o.v.ReadOnly && o.isForNode()
}

// isForNode reports whether the expansion is left to the nodes of the volume. A resizer of a cluster that keeps what it
// has allocated says so in the claim; until then it may have work to do itself.
func (o *operation) isForNode() bool {
	switch o.resizeStatus() {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		return true
	case "":
		return o.v.Claim == nil || o.v.Claim.Status.AllocatedResources == nil || o.isExpandedElsewhere()
	default:
		return false
	}
}

// expansionNotRequired is the annotation of a claim whose volume grows without its nodes.
const expansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

// isExpanded reports whether the claim has the size of its volume already.
func (o *operation) isExpanded() bool {
	return o.resizeStatus() == "" && o.knownSize() >= o.size()
}

// isExpandedElsewhere reports whether another node may have expanded the volume, of which the claim has
// the size then: one that several nodes may write to has to be expanded on each.
func (o *operation) isExpandedElsewhere() bool {
	return o.v.Claim != nil && o.isExpanded() && !metav1.HasAnnotation(o.v.Claim.ObjectMeta, expansionNotRequired) &&
		slices.Contains(o.v.Claim.Spec.AccessModes, corev1.ReadWriteMany)
}

// expand has the driver use all of a volume that has become larger. At the first mount of a
// volume whose size is not kept the driver is asked in any case. A failure is an error at
// the first mount, and an event later. A driver that does not expand a volume in use is asked
// once for each mount: that keeps no pod from starting.
func (m *Manager) expand(ctx context.Context, o *operation, first bool) error {
	if !m.isLarger(o, first) {
		if first && o.state.expanded == 0 {
			o.state.expanded = min(o.knownSize(), o.size()) // with which the node got it
		}
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
	e := m.expansions(o)
	if e != nil && o.resizeStatus() == corev1.PersistentVolumeClaimNodeResizePending {
		if err := e.Expanding(ctx, o.v.Claim); err != nil {
			return fmt.Errorf("report the expansion of volume %s: %w", o.id.name, err)
		}
	}
	defer m.warnSlow(o.v.Pod, o.v.Volume.Name, o.id.driver, "NodeExpandVolume")()
	startTime := time.Now()
	_, err = call(ctx, o.client, "NodeExpandVolume", secrets, o.client.node.NodeExpandVolume, &spec.NodeExpandVolumeRequest{
		VolumeId: o.id.handle, VolumePath: m.paths.target(o.uid, &o.id), StagingTargetPath: o.stagingPath,
		CapacityRange: &spec.CapacityRange{RequiredBytes: o.size()}, VolumeCapability: o.capability(nil), Secrets: secrets,
	})
	if !first {
		m.ended(ctx, volume.OperationResize, &o.id, startTime, err)
	}
	if err != nil {
		m.record(o.v.Pod, corev1.EventTypeWarning, "VolumeResizeFailed", fmt.Sprintf("volume %q: %v", o.v.Volume.Name, err))
		if isCode(err, codes.FailedPrecondition) {
			o.state.inUseSize = o.size()
			return nil
		}
		return errors.Join(err, reportFailure(ctx, e, o, err))
	}
	if e != nil && !o.isExpanded() {
		if err := e.Expanded(ctx, o.v.Claim, o.v.PersistentVolume); err != nil {
			return fmt.Errorf("report the size of volume %s: %w", o.id.name, err)
		}
	}
	o.state.expanded = o.size()
	if !first {
		m.record(o.v.Pod, corev1.EventTypeNormal, "FileSystemResizeSuccessful", fmt.Sprintf("volume %q has %s now", o.v.Volume.Name, o.capacity()))
	}
	return nil
}

// reportFailure reports an expansion that the driver has ended with an error. It is infeasible by the
// driver's word, or if a claim for which an expansion has failed before requests another size by now:
// then the resizer of the cluster has to go on from here.
func reportFailure(ctx context.Context, e Expansions, o *operation, reason error) error {
	// A call with one of these codes may be under way still (CSI specification, error scheme).
	mayGoOn := isCode(reason, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted)
	var answer *callError
	if e == nil || mayGoOn || !errors.As(reason, &answer) {
		return nil
	}
	infeasible := isCode(reason, codes.InvalidArgument, codes.OutOfRange, codes.NotFound) ||
		o.state.failedSize == o.size() && o.v.Claim.Spec.Resources.Requests.Storage().Value() != o.size()
	o.state.failedSize = o.size()
	if o.resizeStatus() == "" {
		return nil
	}
	if err := e.ExpansionFailed(ctx, o.v.Claim, reason, infeasible); err != nil {
		return fmt.Errorf("report the failed expansion of volume %s: %w", o.id.name, err)
	}
	return nil
}
