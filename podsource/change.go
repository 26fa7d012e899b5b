package podsource

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Op is the kind of a Change.
type Op uint8

// The kinds of change.
const (
	Add       Op = iota // the pods are new
	Update              // spec, labels or annotations of the pods changed
	Remove              // no source contains the pods any more; they are as last delivered
	Delete              // a deletion timestamp was set or changed
	Reconcile           // only the status of the pods changed
	Refresh             // ConfigMaps or Secrets that the pods use changed, not the pods
)

// String returns the name of the Op in capitals, like the kubelet.
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

// Change is one operation on some pods of one source. The pods are shared and
// read-only.
type Change struct {
	Op     Op
	Source string
	Pods   []*corev1.Pod
}
