package syncloop

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// terminatePredecessors passes to the workers what runs of earlier versions of static pods
// that are added now. Only the runtime knows these: the manifest changed while no process
// ran. Housekeeping would find them later, and both versions would run until then; a worker
// that knows the earlier one first lets the new one wait (PW-9). It is called from the
// goroutine of the loop, and changes nothing in h.
func (h *Housekeeper) terminatePredecessors(added []*corev1.Pod) {
	static := map[types.NamespacedName]types.UID{}
	for _, pod := range added {
		if podspec.IsStatic(pod) {
			static[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = pod.UID
		}
	}
	if len(static) == 0 {
		return
	}
	var desired map[types.UID]struct{} // computed when needed, which is rare
	observed := h.cfg.PodCache.Pods()
	for i := range observed {
		p := &observed[i]
		uid, ok := static[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}]
		if !ok || uid == p.UID || p.Source() == "" || !mayRun(p) || h.cfg.PodManager.cfg.Inspector.IsRunning(uid) {
			continue
		}
		if desired == nil {
			desired = h.desiredUIDs()
		}
		_, isDesired := desired[p.UID]
		_, known := h.cfg.Workers.State(p.UID)
		if !isDesired && !known && !h.cfg.Sources.MayBeDesired(p.Source(), p.Namespace, p.Name) {
			h.terminateOrphan(p)
		}
	}
}

// desiredUIDs returns the pods that the loop or a source contains.
func (h *Housekeeper) desiredUIDs() map[types.UID]struct{} {
	uids := h.cfg.PodManager.AddDesiredUIDs(nil)
	for _, pod := range h.cfg.Sources.Pods() {
		uids[pod.UID] = struct{}{}
	}
	return uids
}
