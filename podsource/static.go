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
func (n notStatic) Static() bool   { return false }
func (n notStatic) Unwrap() Source { return n.src }

// PodsOnlySource is a Source that decides whether its Sets have pods only. ConfigMaps and
// Secrets of other places are then used before it has synced, as at a start without the
// server that it reads, and its pods do not wait for those of other sources. Other Sources
// may have both. A decorator with a method Unwrap() Source inherits the decision.
type PodsOnlySource interface {
	Source
	// PodsOnly is called once, by New.
	PodsOnly() bool
}

func isStatic(src Source) bool {
	s, ok := unwrapped[StaticSource](src)
	return !ok || s.Static()
}

func isPodsOnly(src Source) bool {
	s, ok := unwrapped[PodsOnlySource](src)
	return ok && s.PodsOnly()
}

// unwrapped returns the outermost source of src and of what it decorates that is a T.
func unwrapped[T Source](src Source) (s T, ok bool) {
	for src != nil {
		if s, ok = src.(T); ok {
			return s, true
		}
		w, isDecorator := src.(interface{ Unwrap() Source })
		if !isDecorator {
			break
		}
		src = w.Unwrap()
	}
	return s, false
}
