package runtime

import "time"

// ActionType says what an Action does.
type ActionType uint8

// The verbs.
const (
	// Wait: a back-off runs until Action.Until, or with no Until the container
	// waits for another one. Nothing is to be done.
	Wait ActionType = iota
	// KillContainer ends container ID within its grace period.
	KillContainer
	// RemoveContainer removes dead container ID.
	RemoveContainer
	// KillSandbox stops sandbox ID and whatever still runs in it.
	KillSandbox
	// CreateSandbox makes the pod's sandbox with the given Attempt.
	CreateSandbox
	// StartContainer pulls the image where needed, makes and starts the
	// container with the given Attempt in the ready sandbox.
	StartContainer
	// UpdateResources brings container ID's resources to the spec's in place.
	UpdateResources
)

// Action is one step of a plan. Which fields count depends on the Verb.
type Action struct {
	Type          ActionType
	Container     string // name in the pod spec
	ContainerType ContainerType
	ID            string // of the container or sandbox acted on
	Attempt       uint32
	BackOffStep   int // BackOffStep of the container to start
	// RestartGeneration of the container to start. It grows each time that a restart rule
	// makes all containers start anew; the container keeps it (AnnotationRound).
	RestartGeneration uint32
	GracePeriod       time.Duration // KillContainer: how long it may take, preStop included
	// Stage orders KillContainer actions that follow each other, as Stop.Stage
	// does: those of one stage begin together, once those of the former one have
	// ended. All their graces begin with the first stage.
	Stage   int
	Until   time.Time // Wait: when the back-off ends; zero: something has to change first
	Reason  string    // why, in the kubelet's terms: CrashLoopBackOff, Unhealthy, ...
	Message string    // for people
}

// Failure is why a container (or the sandbox, under the empty name) is not
// where the plan wanted it. Reason and Message become the waiting reason in
// status: ErrImagePull, CreateContainerError, CrashLoopBackOff, ...
type Failure struct {
	Reason, Message string
	Until           time.Time // back-offs: when the next try is due
	Err             error     // nil for a back-off
}

// ApplyResult is what carrying out a plan came to.
type ApplyResult struct {
	// Failures by container name; "" is the sandbox. Empty: all was done.
	Failures map[string]Failure
	// Changed says whether any call was made that may have changed the runtime.
	Changed bool
}

// SyncResult is what one sync of a pod came to.
type SyncResult struct {
	Terminal  bool      // every container is done for good
	RequeueAt time.Time // when to sync again at the latest; zero: at the resync interval
	// Unchanged: no call was made that may have changed the runtime, so that what was
	// seen before the sync still holds and nobody has to look again.
	Unchanged bool
}

// Termination says how and why a pod ends.
type Termination struct {
	GracePeriod time.Duration // whole seconds; 0 only when forced
	// Reason, if set, makes the pod's phase Failed with it and Message.
	Reason, Message string
	Evicted         bool // adds the condition DisruptionTarget
	Deleted         bool // no configuration names the pod any more
	// Drained says that the node stops, and not the pod: it is wanted still, and
	// those of its containers that restart are started by the next agent. Its phase is
	// the one that they call for.
	Drained bool
}
