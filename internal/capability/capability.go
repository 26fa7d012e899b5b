// Package capability finds optional interfaces of a value, also behind decorators.
package capability

// maxDecorators bounds the depth of decorators, so that a value that unwraps to itself
// does not cause an endless loop.
const maxDecorators = 100

// Of returns v if it implements T, otherwise the first value that does among those
// returned by Unwrap() any, applied repeatedly.
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
