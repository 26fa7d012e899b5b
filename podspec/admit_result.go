package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// AdmitResult is the answer to whether a pod may run here. A refusal has a Reason
// in one CamelCase word and a Message for people; both go into the pod's status.
type AdmitResult struct {
	Admitted        bool
	Reason, Message string
	// Insufficient are the resources that the node has too little of, in no order. It
	// is empty for a refusal for any other reason.
	Insufficient []InsufficientResource
}

// InsufficientResource is a resource that a pod requests more of than is free.
type InsufficientResource struct {
	Name      corev1.ResourceName
	Requested resource.Quantity
	Used      resource.Quantity // by the other pods
	Capacity  resource.Quantity // what there is for all pods together
}

// ExceedsCapacity reports whether the pod requests more than the node has for all
// pods, so that it does not fit even alone.
func (r InsufficientResource) ExceedsCapacity() bool { return r.Requested.Cmp(r.Capacity) > 0 }

// Infeasible reports whether a refusal holds whatever other pods do: the pod requests
// more of a resource than the node has. Of a refusal for another reason that is not
// known.
func (v AdmitResult) Infeasible() bool {
	for _, r := range v.Insufficient {
		if r.ExceedsCapacity() {
			return true
		}
	}
	return false
}

// Admitted returns the verdict that lets a pod run.
func Admitted() AdmitResult { return AdmitResult{Admitted: true} }

// Rejected returns the verdict that keeps a pod from running.
func Rejected(reason, message string) AdmitResult {
	return AdmitResult{Reason: reason, Message: message}
}
