package podsource

import "context"

// StaticSource is a Source that says whether its pods are static, which a Source
// without this method is. A decorator that has a method Unwrap() Source says what the
// Source that it wraps says.
//
// A static pod is this node's alone: no API server knows it, no scheduler chose the
// node, and no controller puts another one in its place. So it is critical and
// admitted under pressure, and tried again when it was rejected or evicted. Pods that
// are not static stay Failed then, as Kubernetes has it: whoever made them replaces
// them.
type StaticSource interface {
	Source
	// Static is called once, by New, and always gives the same answer.
	Static() bool
}

// NotStatic returns src with pods that are not static, whoever fills it: a program
// that takes them from a control plane of its own.
func NotStatic(src Source) Source { return notStatic{src} }

type notStatic struct{ src Source }

func (n notStatic) Watch(ctx context.Context, hand func(Set)) error { return n.src.Watch(ctx, hand) }
func (n notStatic) Static() bool                                    { return false }

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
