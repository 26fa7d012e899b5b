package syncloop

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a pod left is removed beside the loop, by its UID. Should a pod of that UID
// be wanted in that moment, its new folder would go as well: so it is held, and
// begins when the old one is gone.

// reserveUID keeps a pod that nobody wants from beginning, should it be wanted in the
// next moment, and reports whether it does: it cannot if the pod is wanted already.
func (p *PodManager) reserveUID(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, held := p.reservedUIDs[uid]; held || p.desired[uid] != nil {
		return false
	}
	p.reservedUIDs[uid] = struct{}{}
	return true
}

// unreserveUID ends hold. It reports whether the pod is wanted now; then it begins with
// Again, and not before.
func (p *PodManager) unreserveUID(uid types.UID) (wanted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.desired[uid] != nil {
		return true
	}
	delete(p.reservedUIDs, uid)
	return false
}

// clearReservation ends what letGo has left and reports whether there was anything.
func (p *PodManager) clearReservation(uid types.UID) (held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, held = p.reservedUIDs[uid]
	delete(p.reservedUIDs, uid)
	return held
}

// markDesired notes that a pod is wanted from now on, and reports whether it is held.
func (p *PodManager) markDesired(pod *corev1.Pod) (held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, held = p.reservedUIDs[pod.UID]
	p.desired[pod.UID] = &desiredPod{pod: pod, waitsForCleanup: held}
	return held
}
