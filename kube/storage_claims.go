package kube

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Expanding records that the node expands the volume of a claim.
func (s *Storage) Expanding(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	return s.patchClaim(ctx, claim, map[string]any{"allocatedResourceStatuses": resizeStatus(corev1.PersistentVolumeClaimNodeResizeInProgress)})
}

func resizeStatus(st corev1.ClaimResourceStatus) map[corev1.ResourceName]corev1.ClaimResourceStatus {
	return map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: st}
}

// Expanded records the new size of a claim, whose file system the node has made larger: what the cluster's resizer has
// allocated for it, if it keeps that, or the size of the PersistentVolume, which may be rounded up.
func (s *Storage) Expanded(ctx context.Context, claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) error {
	size := v.Spec.Capacity.Storage()
	if allocated, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok {
		size = &allocated
	}
	done := func(t corev1.PersistentVolumeClaimConditionType) map[string]any {
		return map[string]any{"$patch": "delete", "type": t}
	}
	return s.patchClaim(ctx, claim, map[string]any{
		"capacity": map[string]any{"storage": size.String()}, "allocatedResourceStatuses": nil,
		"conditions": []any{done(corev1.PersistentVolumeClaimFileSystemResizePending), done(corev1.PersistentVolumeClaimNodeResizeError)},
	})
}

// ExpansionFailed records why the volume of a claim could not be expanded, in the condition
// NodeResizeError, and whether it is infeasible.
func (s *Storage) ExpansionFailed(ctx context.Context, claim *corev1.PersistentVolumeClaim, reason error, infeasible bool) error {
	status := map[string]any{"conditions": []any{corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		Message: "Expand the volume on its node: " + reason.Error(),
	}}}
	if infeasible {
		status["allocatedResourceStatuses"] = resizeStatus(corev1.PersistentVolumeClaimNodeResizeInfeasible)
	}
	return s.patchClaim(ctx, claim, status)
}

// patchClaim changes fields of the status of a claim. Others write it, too: what the patch does not
// name is left as the server has it.
func (s *Storage) patchClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID}, "status": status})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = s.k.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
