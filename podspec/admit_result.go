package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// AdmitResult is the decision on whether a pod may run on this node. A rejection has a
// Reason in CamelCase and a Message; both are set in the status of the pod.
type AdmitResult struct {
	Admitted        bool
	Reason, Message string
	// Insufficient contains the insufficient resources, in no order. It is empty for
	// rejections with other reasons.
	Insufficient []InsufficientResource
	// CanNeverFit says of a rejection that the node will not take the pod without other pods either.
	CanNeverFit bool
}

// InsufficientResource is a resource that a pod requests more of than is free.
type InsufficientResource struct {
	Name      corev1.ResourceName
	Requested resource.Quantity
	Used      resource.Quantity // requested by the other pods
	Capacity  resource.Quantity // available to all pods together
}

// ExceedsCapacity reports whether the pod requests more than the node has for all
// pods, so that it does not fit even alone.
func (r InsufficientResource) ExceedsCapacity() bool { return r.Requested.Cmp(r.Capacity) > 0 }

// Infeasible reports whether the pod requests more of a resource than the node has, or can
// never fit for another reason, so that it does not fit even without other pods. It is the condition for the reason
// Infeasible of a resize (KEP-1287).
func (v AdmitResult) Infeasible() bool {
	for _, r := range v.Insufficient {
		if r.ExceedsCapacity() {
			return true
		}
	}
	return v.CanNeverFit
}

// Admitted returns the result that admits a pod.
func Admitted() AdmitResult { return AdmitResult{Admitted: true} }

// Rejected returns a result that rejects a pod with a reason in CamelCase.
func Rejected(reason, message string) AdmitResult {
	return AdmitResult{Reason: reason, Message: message}
}
