package podworkers

//go:generate go tool stringer -type=Phase,Cause,RequeueReason -output=phase_string.go

// Phase is a stage of a pod's lifecycle. A pod only moves to a later phase.
type Phase uint8

// The phases.
const (
	Syncing     Phase = iota // the pod is brought to, and kept at, its desired state
	Terminating              // its containers are being stopped
	Terminated               // its containers have stopped; its resources are being released
	Finished                 // its resources are released
)

// Cause is why a pod is terminated.
type Cause uint8

// The causes.
const (
	NotTerminating Cause = iota // the pod is not being terminated
	Deleted                     // it has a deletion timestamp
	Completed                   // its phase is Succeeded or Failed, or all its containers have completed
	Killed                      // a kill was requested
	Evicted                     // a kill with KillOptions.Evicted was requested
	Removed                     // no source contains it any more
	Orphaned                    // it was found in the runtime and in no source
)

// RequeueReason is why a pod is due for another sync.
type RequeueReason uint8

// The requeue reasons.
const (
	// RequeueEvent: the pod changed in the runtime. A pod whose calls fail
	// repeatedly is deferred for up to a second, so that the changes that a failing
	// call makes do not cause the next call without delay.
	RequeueEvent RequeueReason = iota
	// RequeueNow: an explicit request, for example after a failed probe.
	RequeueNow
)
