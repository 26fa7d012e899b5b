package syncloop

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// snapshot is all that housekeeping looks at.
type snapshot struct {
	stores       []storeUIDs
	runtime      []runtime.Pod          // what is in the runtime, alive or dead
	uninspected  []types.UID            // what is there too and was not looked at yet
	known        map[types.UID]struct{} // of these, what has a life already
	mayBeDesired map[types.UID]struct{} // of these, what may yet turn out to be wanted
	allSynced    bool                   // all that is wanted is known
	desired      map[types.UID]struct{}
}

// storeUIDs is what one Store has.
type storeUIDs struct {
	store int // its index
	uids  []types.UID
	err   error // why not all of them are known
}

// cleanupPlan are what housekeeping has to do.
type cleanupPlan struct {
	orphans           []runtime.Pod // orphans
	orphanedResources []storeUIDs
}

// plan works out what is wanted by nobody. It is pure.
//
// A pod in the runtime is judged by the source that it says it came from: if that
// has not told all that it wants, it may want this pod. One that names no source was
// not made from one and is left alone. Of what is in a store the source cannot be
// told, so that it has to wait until all sources are known.
func (s *snapshot) plan() cleanupPlan {
	var c cleanupPlan
	for i := range s.runtime {
		p := &s.runtime[i]
		if len(p.Sandboxes)+len(p.Containers) == 0 {
			continue
		}
		_, held := s.mayBeDesired[p.UID]
		if !held && !s.isDesiredOrKnown(p.UID) && sourceOf(p) != "" {
			c.orphans = append(c.orphans, *p)
		}
	}
	if !s.allSynced {
		return c
	}
	var present map[types.UID]struct{} // most of the time nobody asks
	for _, st := range s.stores {
		left := slices.DeleteFunc(slices.Clone(st.uids), s.isDesiredOrKnown)
		if len(left) > 0 && present == nil {
			present = s.runtimeUIDs()
		}
		left = slices.DeleteFunc(left, func(uid types.UID) bool { _, ok := present[uid]; return ok })
		if len(left) > 0 {
			c.orphanedResources = append(c.orphanedResources, storeUIDs{store: st.store, uids: left})
		}
	}
	return c
}

// runtimeUIDs are the pods of which anything is in the runtime.
func (s *snapshot) runtimeUIDs() map[types.UID]struct{} {
	there := make(map[types.UID]struct{}, len(s.runtime)+len(s.uninspected))
	for _, uid := range s.uninspected {
		there[uid] = struct{}{}
	}
	for i := range s.runtime {
		if p := &s.runtime[i]; len(p.Sandboxes)+len(p.Containers) > 0 {
			there[p.UID] = struct{}{}
		}
	}
	return there
}

// isDesiredOrKnown reports whether somebody sees to the pod.
func (s *snapshot) isDesiredOrKnown(uid types.UID) bool {
	_, wanted := s.desired[uid]
	_, known := s.known[uid]
	return wanted || known
}

// sourceOf returns the source that a pod in the runtime says it came from.
func sourceOf(p *runtime.Pod) string {
	for i := range p.Sandboxes {
		if s := p.Sandboxes[i].Source; s != "" {
			return s
		}
	}
	for i := range p.Containers {
		if s := p.Containers[i].Annotations[podspec.AnnotationSource]; s != "" {
			return s
		}
	}
	return ""
}
