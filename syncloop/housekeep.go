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
	for _, st := range s.stores {
		left := slices.DeleteFunc(slices.Clone(st.uids), s.claimed)
		left = slices.DeleteFunc(left, s.present)
		if len(left) > 0 {
			c.drop = append(c.drop, stored{st.store, left})
		}
	}
	return c
}

// present reports whether anything of the pod is in the runtime. It is asked of few.
func (s *scene) present(uid types.UID) bool {
	return slices.Contains(s.unseen, uid) || slices.ContainsFunc(s.runtime, func(p runtime.Pod) bool {
		return p.UID == uid && len(p.Sandboxes)+len(p.Containers) > 0
	})
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
