package syncloop

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// scene is all that housekeeping looks at.
type scene struct {
	stores  []stored
	runtime []runtime.Pod          // what is in the runtime, alive or dead
	unseen  []types.UID            // what is there too and was not looked at yet
	known   map[types.UID]struct{} // of these, what has a life already
	held    map[types.UID]struct{} // of these, what may yet turn out to be wanted
	full    bool                   // all that is wanted is known
	wanted  map[types.UID]struct{}
}

// stored is what one Store has.
type stored struct {
	store int // its index
	uids  []types.UID
	err   error // why not all of them are known
}

// chores are what housekeeping has to do.
type chores struct {
	end  []runtime.Pod // orphans
	drop []stored
}

// plan works out what is wanted by nobody. It is pure.
//
// A pod in the runtime is judged by the source that it says it came from: if that
// has not told all that it wants, it may want this pod. One that names no source was
// not made from one and is left alone. Of what is in a store the source cannot be
// told, so that it has to wait until all sources are known.
func (s *scene) plan() chores {
	var c chores
	for i := range s.runtime {
		p := &s.runtime[i]
		if len(p.Sandboxes)+len(p.Containers) == 0 {
			continue
		}
		_, held := s.held[p.UID]
		if !held && !s.claimed(p.UID) && sourceOf(p) != "" {
			c.end = append(c.end, *p)
		}
	}
	if !s.full {
		return c
	}
	var present map[types.UID]struct{} // most of the time nobody asks
	for _, st := range s.stores {
		left := slices.DeleteFunc(slices.Clone(st.uids), s.claimed)
		if len(left) > 0 && present == nil {
			present = s.present()
		}
		left = slices.DeleteFunc(left, func(uid types.UID) bool { _, ok := present[uid]; return ok })
		if len(left) > 0 {
			c.drop = append(c.drop, stored{store: st.store, uids: left})
		}
	}
	return c
}

// present are the pods of which anything is in the runtime.
func (s *scene) present() map[types.UID]struct{} {
	there := make(map[types.UID]struct{}, len(s.runtime)+len(s.unseen))
	for _, uid := range s.unseen {
		there[uid] = struct{}{}
	}
	for i := range s.runtime {
		if p := &s.runtime[i]; len(p.Sandboxes)+len(p.Containers) > 0 {
			there[p.UID] = struct{}{}
		}
	}
	return there
}

// claimed reports whether somebody sees to the pod.
func (s *scene) claimed(uid types.UID) bool {
	_, wanted := s.wanted[uid]
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
