package syncloop

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// snapshot is the input of one pass of housekeeping.
type snapshot struct {
	stores       []storeUIDs
	runtime      []runtime.Pod          // pods in the runtime, running or not
	uninspected  []types.UID            // pods in the runtime that were not inspected yet
	known        map[types.UID]struct{} // pods of stores and runtime that have a worker
	mayBeDesired map[types.UID]struct{} // pods of the runtime that a source may still deliver
	allSynced    bool                   // all sources have synced
	desired      map[types.UID]struct{}
}

// storeUIDs are the pods of one PodStore.
type storeUIDs struct {
	store int // its index
	uids  []types.UID
	err   error // why uids is incomplete
}

// cleanupPlan is what housekeeping must do.
type cleanupPlan struct {
	orphans           []runtime.Pod
	orphanedResources []storeUIDs
}

// plan finds the pods that no source contains. It is pure.
//
// For a pod in the runtime, the source counts that its labels name: if that has not
// synced, it may contain the pod. A pod that names no source was not made from one and
// is left alone, unless the runtime reports pods as objects: it may have stored no
// annotations, and reports no pods but those of the agent. The source of resources in a store is unknown, so they are kept until
// all sources have synced.
func (s *snapshot) plan() cleanupPlan {
	var c cleanupPlan
	for i := range s.runtime {
		p := &s.runtime[i]
		if p.IsEmpty() {
			continue
		}
		_, mayBeDesired := s.mayBeDesired[p.UID]
		fromSource := p.Source() != "" || p.Object != nil && s.allSynced
		if !mayBeDesired && !s.isDesiredOrKnown(p.UID) && fromSource {
			c.orphans = append(c.orphans, *p)
		}
	}
	if !s.allSynced {
		return c
	}
	var inRuntime map[types.UID]struct{} // computed when needed, which is rare
	for _, st := range s.stores {
		left := slices.DeleteFunc(slices.Clone(st.uids), s.isDesiredOrKnown)
		if len(left) == 0 {
			continue
		}
		if inRuntime == nil {
			inRuntime = s.runtimeUIDs()
		}
		left = slices.DeleteFunc(left, func(uid types.UID) bool { _, ok := inRuntime[uid]; return ok })
		if len(left) > 0 {
			c.orphanedResources = append(c.orphanedResources, storeUIDs{store: st.store, uids: left})
		}
	}
	return c
}

// runtimeUIDs returns the pods that have anything in the runtime.
func (s *snapshot) runtimeUIDs() map[types.UID]struct{} {
	uids := map[types.UID]struct{}{}
	for _, uid := range s.uninspected {
		uids[uid] = struct{}{}
	}
	for i := range s.runtime {
		if p := &s.runtime[i]; !p.IsEmpty() {
			uids[p.UID] = struct{}{}
		}
	}
	return uids
}

// isDesiredOrKnown reports whether a source contains the pod or a worker handles it.
func (s *snapshot) isDesiredOrKnown(uid types.UID) bool {
	_, desired := s.desired[uid]
	_, known := s.known[uid]
	return desired || known
}
