package runtime

// OwnerSetter is the capability of a runtime that others may have pods in too: it
// marks what it makes with its owner, and keeps the pods of others out of
// everything it tells. An agent calls SetOwner once, before anything else, with the
// id that it keeps in its root directory. A runtime without it has no pods but the
// agent's: all that its Pods returns is taken for the agent's own.
type OwnerSetter interface {
	// SetOwner sets the id, and the sources (kubernetes.io/config.source) of pods
	// that bear no id and are to be taken for the owner's.
	SetOwner(owner string, adoptSources []string)
}

// Capability returns what rt can do besides what is required of it: rt itself if it
// is a T, else what its Unwrap method returns, and so on. A decorator of a runtime
// keeps the capabilities of what it decorates by a method Unwrap() any.
func Capability[T any](rt any) (T, bool) {
	for rt != nil {
		if t, ok := rt.(T); ok {
			return t, true
		}
		w, ok := rt.(interface{ Unwrap() any })
		if !ok {
			break
		}
		rt = w.Unwrap()
	}
	var none T
	return none, false
}
