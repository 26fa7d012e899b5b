package syncloop

import (
	"slices"
	"time"

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
	removed      map[types.UID]struct{} // pods of stores that their source, by their last report, does not contain; unless allSynced
	desired      map[types.UID]struct{}
	handled      map[types.UID]time.Time // see handledOrphans
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
// annotations, and reports no pods but those of the agent. The source of resources in a store is that of the last report of
// their pod. Those of a pod without one are kept until all sources have synced.
func (s *snapshot) plan() cleanupPlan {
	var c cleanupPlan
	for i := range s.runtime {
		p := &s.runtime[i]
		if p.IsEmpty() || s.isDesiredOrKnown(p.UID) { // almost all: of these nothing else is read
			continue
		}
		_, mayBeDesired := s.mayBeDesired[p.UID]
		fromSource := p.Source() != "" || p.Object != nil && s.allSynced
		if !mayBeDesired && fromSource && !s.isLeft(p) {
			c.orphans = append(c.orphans, *p)
		}
	}
	var inRuntime map[types.UID]struct{} // computed when needed, which is rare
	for _, st := range s.stores {
		left := s.leftOf(st.uids)
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

// leftOf returns those of the pods of a store that no source contains and no worker handles.
func (s *snapshot) leftOf(uids []types.UID) []types.UID {
	return slices.DeleteFunc(slices.Clone(uids), func(uid types.UID) bool {
		_, removed := s.removed[uid]
		return s.isDesiredOrKnown(uid) || !s.allSynced && !removed
	})
}

// runtimeUIDs returns the pods that have anything in the runtime.
func (s *snapshot) runtimeUIDs() map[types.UID]struct{} {
	uids := map[types.UID]struct{}{}
	for _, uid := range s.uninspected {
		uids[uid] = struct{}{}
	}
	for i := range s.runtime {
		if p := &s.runtime[i]; !p.IsEmpty() && !s.isLeft(p) {
			uids[p.UID] = struct{}{}
		}
	}
	return uids
}

// orphanRetryPeriod is the time between attempts of the workers to remove an orphan of which
// nothing runs. Garbage collection tries it meanwhile.
const orphanRetryPeriod = 10 * time.Minute

// handledOrphans returns those of handled that are still in the runtime, are not desired and
// had a worker within orphanRetryPeriod. It never returns nil.
func (s *snapshot) handledOrphans(handled map[types.UID]time.Time, now time.Time) map[types.UID]time.Time {
	orphans := map[types.UID]time.Time{}
	if len(handled) == 0 {
		return orphans
	}
	for i := range s.runtime {
		p := &s.runtime[i]
		at, ok := handled[p.UID]
		if _, desired := s.desired[p.UID]; ok && !desired && !p.IsEmpty() && now.Sub(at) < orphanRetryPeriod {
			orphans[p.UID] = at
		}
	}
	return orphans
}

// isLeft reports whether the pod is left to garbage collection for now: a worker has tried to
// remove it, the runtime cannot, and nothing of it runs.
func (s *snapshot) isLeft(p *runtime.Pod) bool {
	_, handled := s.handled[p.UID]
	return handled && !mayRun(p)
}

// mayRun reports whether a worker has something to terminate of a pod. Objects are removed by
// workers only.
func mayRun(p *runtime.Pod) bool {
	return p.Object != nil || p.CouldHaveRunningContainers() || p.HasReadySandbox()
}

// isDesiredOrKnown reports whether a source contains the pod or a worker handles it.
func (s *snapshot) isDesiredOrKnown(uid types.UID) bool {
	_, desired := s.desired[uid]
	_, known := s.known[uid]
	return desired || known
}
