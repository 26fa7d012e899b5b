package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/sublet-dev/agent/podspec"
)

// merged returns the status that a pod in the API server should get: the node's fields
// and conditions of own, and those of other components as base, the server's version,
// has them.
func merged(base *corev1.Pod, own *corev1.PodStatus) corev1.PodStatus {
	st := *own
	st.Conditions = mergedConditions(base.Status.Conditions, sendable(own))

	// Other components write these, or they are set only once.
	st.NominatedNodeName = base.Status.NominatedNodeName
	st.ResourceClaimStatuses = base.Status.ResourceClaimStatuses
	st.ExtendedResourceClaimStatus = base.Status.ExtendedResourceClaimStatus
	st.NodeAllocatableResourceClaimStatuses = base.Status.NodeAllocatableResourceClaimStatuses
	if base.Status.QOSClass != "" {
		st.QOSClass = base.Status.QOSClass
	}
	if base.Status.StartTime != nil {
		st.StartTime = base.Status.StartTime
	}
	// Another component may have ended the pod, such as the garbage collection of a controller-manager: no pod
	// leaves a terminal phase. A static pod that was evicted starts again under its mirror pod.
	if phase := base.Status.Phase; podspec.IsTerminalPhase(phase) && (phase != st.Phase || st.Reason == "") && !podspec.IsMirror(base) {
		st.Phase, st.Reason, st.Message = phase, base.Status.Reason, base.Status.Message
	}
	if len(st.VolumeHealth) == 0 {
		st.VolumeHealth = base.Status.VolumeHealth
	}
	st.ObservedGeneration = max(own.ObservedGeneration, base.Status.ObservedGeneration)
	return st
}

// mergedConditions returns the node's conditions of own and all others of base. A
// condition of the node that own lacks is removed, but for DisruptionTarget, which
// other components set too. The order is that of base, as far as it has them.
func mergedConditions(base, own []corev1.PodCondition) []corev1.PodCondition {
	var out []corev1.PodCondition
	added := map[corev1.PodConditionType]bool{}
	for _, c := range base {
		i := slices.IndexFunc(own, func(o corev1.PodCondition) bool { return o.Type == c.Type })
		switch {
		case i >= 0 && podspec.IsNodeCondition(c.Type) && !isCopied(&own[i]):
			out = append(out, own[i])
		case !podspec.IsNodeCondition(c.Type), c.Type == corev1.DisruptionTarget:
			out = append(out, c)
		default:
			continue
		}
		added[c.Type] = true
	}
	for _, c := range own {
		if !added[c.Type] && podspec.IsNodeCondition(c.Type) {
			out = append(out, c)
		}
	}
	return out
}

// sendable returns the node's conditions that may be sent. That it terminates a pod is sent when the
// pod has ended: the disruption controller resets the condition of one that runs for long.
func sendable(own *corev1.PodStatus) []corev1.PodCondition {
	if podspec.IsTerminalPhase(own.Phase) {
		return own.Conditions
	}
	return slices.DeleteFunc(slices.Clone(own.Conditions), func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonTerminationByKubelet
	})
}

// isCopied reports whether the node has a condition from another component, which may have changed
// it since. The reason of DisruptionTarget says whose it is.
func isCopied(own *corev1.PodCondition) bool {
	return own.Type == corev1.DisruptionTarget && own.Reason != corev1.PodReasonTerminationByKubelet
}

// statusPatch returns a strategic merge patch that gives base the status of own, with
// the UID of base as a precondition, or nil if base has it.
func statusPatch(base *corev1.Pod, own *corev1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(corev1.Pod{Status: base.Status})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	// The UID is in the new object alone, so that it is in the patch.
	after, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: base.UID}, Status: merged(base, own)})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("make status patch: %w", err)
	}
	if bytes.Equal(patch, fmt.Appendf(nil, `{"metadata":{"uid":%q}}`, base.UID)) {
		return nil, nil
	}
	return patch, nil
}
