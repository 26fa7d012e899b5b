package podsource

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Op says what happened to the pods of a Change.
type Op uint8

// The kinds of change.
const (
	Add       Op = iota // the pods are new
	Update              // what the pods ask for, or their labels or annotations, changed
	Remove              // the pods are not wanted any more; they are as they were told last
	Delete              // the pods are to be deleted: a deletion timestamp was set or changed
	Reconcile           // only the pods' status changed
	Refresh             // ConfigMaps or Secrets that the pods use changed; the pods did not
)

// String returns the name of the Op in capitals, as the kubelet has it.
func (op Op) String() string {
	switch op {
	case Add:
		return "ADD"
	case Update:
		return "UPDATE"
	case Remove:
		return "REMOVE"
	case Delete:
		return "DELETE"
	case Reconcile:
		return "RECONCILE"
	case Refresh:
		return "REFRESH"
	}
	return "Op(" + strconv.Itoa(int(op)) + ")"
}

// Change is one thing that happened to some pods of one source. The pods are
// shared and read-only.
type Change struct {
	Op     Op
	Source string
	Pods   []*corev1.Pod
}
