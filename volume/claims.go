package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/internal/nodeselector"
	"github.com/sublet-dev/agent/podspec"
)

// Claims finds the PersistentVolumeClaims of pods and the volumes that they are bound to.
// A Files has those of manifests, and package kube those of an API server. The error wraps
// podspec.ErrObjectNotFound if there is no such object. Methods may block until ctx is done
// and are called from many goroutines; the results are read-only.
type Claims interface {
	Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	PersistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
}

// claimProtection is the finalizer of a claim that a pod uses: a deleted claim has it until that
// pod has ended, so a pod that a previous process has started still has its volume.
const claimProtection = "kubernetes.io/pvc-protection"

// claimedVolume is a claim and what it is bound to.
type claimedVolume struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

// claimOf returns the name of the claim of a volume, "" if it has none.
func claimOf(pod *corev1.Pod, vol *corev1.Volume) (name string, readOnly bool) {
	switch {
	case vol.PersistentVolumeClaim != nil:
		return vol.PersistentVolumeClaim.ClaimName, vol.PersistentVolumeClaim.ReadOnly
	case vol.Ephemeral != nil:
		return pod.Name + "-" + vol.Name, false
	}
	return "", false
}

// isWritable reports whether a container of a pod uses a volume by which it may write to what is bound to a claim.
func isWritable(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(vol corev1.Volume) bool {
		name, readOnly := claimOf(pod, &vol)
		return name == claim && !readOnly && (isMounted(pod, vol.Name) || isBlock(pod, vol.Name))
	})
}

// claimed finds what the claim of a volume is bound to. If that cannot be found out, or is
// not there any more, the last answer counts: a volume that is mounted stays usable.
func (m *Manager) claimed(ctx context.Context, r *request, name string) (claimedVolume, error) {
	c, err := m.findClaimed(ctx, r, name)
	m.claimMu.Lock()
	defer m.claimMu.Unlock()
	last, known := m.lastClaimed[r.pod.UID][r.vol.Name]
	switch {
	case err != nil && known:
		return last, nil
	case err != nil:
		return claimedVolume{}, err
	}
	if m.lastClaimed == nil {
		m.lastClaimed = map[types.UID]map[string]claimedVolume{}
	}
	if m.lastClaimed[r.pod.UID] == nil {
		m.lastClaimed[r.pod.UID] = map[string]claimedVolume{}
	}
	m.lastClaimed[r.pod.UID][r.vol.Name] = c
	return c, nil
}

func (m *Manager) forgetClaims(uid types.UID) {
	m.claimMu.Lock()
	defer m.claimMu.Unlock()
	delete(m.lastClaimed, uid)
}

func (m *Manager) findClaimed(ctx context.Context, r *request, name string) (c claimedVolume, err error) {
	full := r.pod.Namespace + "/" + name
	if m.cfg.Claims == nil {
		return c, errors.New("this agent knows no PersistentVolumeClaims")
	}
	if c.claim, err = m.cfg.Claims.Claim(ctx, r.pod.Namespace, name); err != nil {
		return c, fmt.Errorf("PersistentVolumeClaim %s: %w", full, err)
	}
	switch {
	case isDeleted(c.claim, r.pod):
		return c, fmt.Errorf("PersistentVolumeClaim %s is being deleted", full)
	case c.claim.Spec.VolumeName == "" || c.claim.Status.Phase != corev1.ClaimBound:
		return c, fmt.Errorf("PersistentVolumeClaim %s is not bound to a volume", full)
	case r.vol.Ephemeral != nil && c.claim.UID != "" && !metav1.IsControlledBy(c.claim, r.pod):
		return c, fmt.Errorf("PersistentVolumeClaim %s was not created for this pod: it belongs to another owner", full)
	}
	if c.volume, err = m.cfg.Claims.PersistentVolume(ctx, c.claim.Spec.VolumeName); err != nil {
		return c, fmt.Errorf("PersistentVolume %s of claim %s: %w", c.claim.Spec.VolumeName, full, err)
	}
	if ref := c.volume.Spec.ClaimRef; ref != nil && (ref.Namespace != r.pod.Namespace || ref.Name != name || ref.UID != c.claim.UID) {
		return c, fmt.Errorf("PersistentVolume %s is bound to the claim %s/%s, not to %s", c.volume.Name, ref.Namespace, ref.Name, full)
	}
	return c, m.checkNode(c.volume)
}

// isDeleted reports whether a claim was deleted and is not kept for the pod: nothing protects it,
// or the pod was created later.
func isDeleted(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) bool {
	deleted := claim.DeletionTimestamp
	return deleted != nil && (!slices.Contains(claim.Finalizers, claimProtection) || deleted.Before(&pod.CreationTimestamp))
}

// checkNode checks that a volume with a path on a node is one of this node: on another one
// the same path may have other data. Volumes of drivers are left to these, which do not have
// a volume that is not there.
func (m *Manager) checkNode(v *corev1.PersistentVolume) error {
	affinity := v.Spec.NodeAffinity
	if m.cfg.NodeLabels == nil || affinity == nil || affinity.Required == nil || v.Spec.Local == nil && v.Spec.HostPath == nil {
		return nil
	}
	if !nodeselector.Matches(affinity.Required, "", m.cfg.NodeLabels()) {
		return fmt.Errorf("volume %s is of another node: its nodeAffinity does not match the labels of this one", v.Name)
	}
	return nil
}

// Supported returns a function that leaves out of a list of unsupported fields those that
// the Drivers and Claims of the Config support.
func (cfg Config) Supported(list func(*corev1.Pod) field.ErrorList) func(*corev1.Pod) field.ErrorList {
	drivers, _ := cfg.drivers() // New returns the error
	if len(drivers) == 0 && cfg.Claims == nil {
		return list
	}
	return func(pod *corev1.Pod) field.ErrorList {
		var left field.ErrorList
		for _, e := range list(pod) {
			_, source, _ := strings.Cut(strings.TrimPrefix(e.Field, "spec.volumes["), "].")
			switch {
			case strings.HasPrefix(e.Field, "spec.volumes[") && drivers[source] != nil:
			case strings.HasPrefix(e.Field, "spec.volumes[") && cfg.Claims != nil && (source == "persistentVolumeClaim" || source == "ephemeral"):
			case cfg.Claims != nil && strings.HasSuffix(e.Field, "].volumeDevices"):
			default:
				left = append(left, e)
			}
		}
		return left
	}
}

var _ Claims = (*Files)(nil)

// errNotFound is the error for an object that no manifest has.
func errNotFound(kind, name string) error {
	return fmt.Errorf("%s %s: %w", kind, name, podspec.ErrObjectNotFound)
}
