// Package capability finds out what a value can do besides what is required of it,
// also when it is decorated.
package capability

// maxDecorators bounds how deep a value may be wrapped, so that one that unwraps
// to itself hangs nobody.
const maxDecorators = 100

// Of returns v if it is a T, else what its method Unwrap() any returns if that is
// one, and so on.
func Of[T any](v any) (T, bool) {
	for range maxDecorators {
		if t, ok := v.(T); ok {
			return t, true
		}
		w, ok := v.(interface{ Unwrap() any })
		if !ok {
			break
		}
		v = w.Unwrap()
	}
	var none T
	return none, false
}
