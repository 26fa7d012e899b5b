package podsource

import "context"

// StaticSource is a Source that decides whether its pods are static. Pods of other
// Sources are static. A decorator with a method Unwrap() Source inherits the decision
// of the Source that it wraps.
//
// A static pod exists only on this node: no API server knows it, and no controller
// replaces it. It is therefore critical, admitted under pressure, and retried after a
// rejection or eviction. Other pods then stay Failed, as in Kubernetes, until their
// owner replaces them.
type StaticSource interface {
	Source
	// Static is called once, by New.
	Static() bool
}

// NotStatic returns src with pods that are not static. It is for programs with their
// own control plane.
func NotStatic(src Source) Source { return notStatic{src} }

type notStatic struct{ src Source }

func (n notStatic) Watch(ctx context.Context, deliver func(Set)) error {
	return n.src.Watch(ctx, deliver)
}
func (n notStatic) Static() bool { return false }

func isStatic(src Source) bool {
	for src != nil {
		if s, ok := src.(StaticSource); ok {
			return s.Static()
		}
		w, ok := src.(interface{ Unwrap() Source })
		if !ok {
			break
		}
		src = w.Unwrap()
	}
	return true
}
