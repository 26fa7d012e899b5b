package syncloop

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a pod left is removed beside the loop, by its UID. Should a pod of that UID
// be wanted in that moment, its new folder would go as well: so it is held, and
// begins when the old one is gone.

// hold keeps a pod that nobody wants from beginning, should it be wanted in the
// next moment, and reports whether it does: it cannot if the pod is wanted already.
func (p *Pods) hold(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, held := p.holds[uid]; held || p.wanted[uid] != nil {
		return false
	}
	p.holds[uid] = struct{}{}
	return true
}

// letGo ends hold. It reports whether the pod is wanted now; then it begins with
// Again, and not before.
func (p *Pods) letGo(uid types.UID) (wanted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted[uid] != nil {
		return true
	}
	delete(p.holds, uid)
	return false
}

// release ends what letGo has left and reports whether there was anything.
func (p *Pods) release(uid types.UID) (held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, held = p.holds[uid]
	delete(p.holds, uid)
	return held
}

// take notes that a pod is wanted from now on, and reports whether it is held.
func (p *Pods) take(pod *corev1.Pod) (held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, held = p.holds[pod.UID]
	p.wanted[pod.UID] = &wanted{pod: pod, held: held}
	return held
}
