package podworkers

//go:generate go tool stringer -type=Phase,Cause,RequeueReason -output=phase_string.go

// Phase is a stage of a pod's life. A pod only ever moves to a later one.
type Phase uint8

// The phases.
const (
	Syncing     Phase = iota // brought to, and kept at, what its spec asks for
	Terminating              // its containers are being ended
	Terminated               // none runs; what the pod held is being given back
	Finished                 // nothing is left to do
)

// Cause is why a pod's life came to its end.
type Cause uint8

// The causes.
const (
	NotTerminating Cause = iota // it has not
	Deleted                     // it has a deletion timestamp
	Completed                   // its phase is Succeeded or Failed, or its containers are all done
	Killed                      // asked for by a Kill
	Evicted                     // asked for by a Kill that evicts
	Removed                     // no source names it any more
	Orphaned                    // found in the runtime only
)

// RequeueReason is why a pod should be looked at again.
type RequeueReason uint8

// The reasons to look again.
const (
	// RequeueEvent: something changed in the runtime. A pod whose calls fail again
	// and again is held back for up to a second, so that the changes that a failing
	// call makes do not keep it going at full speed.
	RequeueEvent RequeueReason = iota
	// RequeueDue: the time that Config.Due told has come. Ignored if it has not.
	RequeueDue
	// RequeueNow: somebody wants it, a probe that failed for example.
	RequeueNow
)
