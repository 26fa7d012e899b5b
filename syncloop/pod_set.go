package syncloop

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podSet is a set of pods in a slice, in no order, that is changed in constant time. The
// zero value is empty.
type podSet struct {
	pods []*corev1.Pod
	pos  map[types.UID]int
}

// put adds a pod or replaces it.
func (r *podSet) put(pod *corev1.Pod) {
	if i, ok := r.pos[pod.UID]; ok {
		r.pods[i] = pod
		return
	}
	if r.pos == nil {
		r.pos = map[types.UID]int{}
	}
	r.pos[pod.UID] = len(r.pods)
	r.pods = append(r.pods, pod)
}

// drop removes a pod if it is in the set.
func (r *podSet) drop(uid types.UID) {
	i, ok := r.pos[uid]
	if !ok {
		return
	}
	last := len(r.pods) - 1
	r.pods[i] = r.pods[last]
	r.pos[r.pods[i].UID] = i
	r.pods[last] = nil
	r.pods = r.pods[:last]
	delete(r.pos, uid)
}

// keep removes all pods that are not valid, and reports whether there were any.
func (r *podSet) keep(valid func(*corev1.Pod) bool) (removed bool) {
	for _, pod := range slices.Backward(r.pods) { // drop moves only pods that were checked before
		if !valid(pod) {
			r.drop(pod.UID)
			removed = true
		}
	}
	return removed
}
