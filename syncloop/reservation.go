package syncloop

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The resources of a pod are removed by its UID, outside of the loop. If a new pod of
// that UID started in that moment, its directory would be removed too. Therefore the
// UID is reserved during the removal, and the new pod starts after it.

// reserveUID keeps a pod that is not desired from starting, and reports whether it did.
// It fails if the pod is desired or its UID is reserved.
func (p *PodManager) reserveUID(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, reserved := p.reservedUIDs[uid]; reserved || p.desired[uid] != nil {
		return false
	}
	p.reservedUIDs[uid] = struct{}{}
	return true
}

// unreserveUID ends a reservation, and reports whether the pod is desired now. Then it
// starts with HandlePodRecreations, and not before.
func (p *PodManager) unreserveUID(uid types.UID) (desired bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.desired[uid] != nil {
		return true
	}
	delete(p.reservedUIDs, uid)
	return false
}

// clearReservation ends what unreserveUID has left, and reports whether there was a
// reservation.
func (p *PodManager) clearReservation(uid types.UID) (reserved bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, reserved = p.reservedUIDs[uid]
	delete(p.reservedUIDs, uid)
	return reserved
}

// markDesired stores a new desired pod, and reports whether its UID is reserved.
func (p *PodManager) markDesired(pod *corev1.Pod) (reserved bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, reserved = p.reservedUIDs[pod.UID]
	p.desired[pod.UID] = &desiredPod{pod: pod, waitsForCleanup: reserved}
	return reserved
}
