package runtime

import "time"

// ActionType is the operation of an Action.
type ActionType uint8

// The action types.
const (
	// Wait does nothing: a back-off ends at Action.Until, or with a zero Until the
	// container waits for another one.
	Wait ActionType = iota
	// KillContainer stops container ID within its grace period.
	KillContainer
	// RemoveContainer removes the exited container ID.
	RemoveContainer
	// KillSandbox stops sandbox ID and whatever still runs in it.
	KillSandbox
	// CreateSandbox creates the pod's sandbox with the given Attempt.
	CreateSandbox
	// StartContainer pulls the image if needed, creates and starts the container
	// with the given Attempt in the ready sandbox.
	StartContainer
	// UpdateResources changes the resources of container ID in place to those of the spec. If
	// it fails, or a kill before it, the further ones of the plan are not tried and fail as well.
	UpdateResources
)

// Action is one step of a plan. Which fields are set depends on its Type.
type Action struct {
	Type          ActionType
	Container     string // name in the pod spec
	ContainerType ContainerType
	ID            string // of the container or sandbox acted on
	Attempt       uint32
	BackOffStep   int // BackOffStep of the container to start
	// RestartGeneration of the container to start. It is incremented each time that a
	// restart rule restarts all containers, and stored in AnnotationRestartGeneration.
	RestartGeneration uint32
	GracePeriod       time.Duration // KillContainer: time to stop, including the preStop hook
	// Stage orders consecutive KillContainer actions, like ContainerStop.Stage: the stop
	// signals of one stage follow when the containers of the previous one have ended. All
	// hooks and grace periods begin with the first stage.
	Stage   int
	Until   time.Time // Wait: when the back-off ends; zero: something has to change first
	Reason  string    // why, in the kubelet's terms: CrashLoopBackOff, Unhealthy, ...
	Message string    // for people
}

// Failure is the failure of an action of a container, or of the sandbox for an empty
// container name. Reason and Message become the waiting reason in the status:
// ErrImagePull, CreateContainerError, CrashLoopBackOff, ...
type Failure struct {
	Reason, Message string
	Until           time.Time // back-offs: the time of the next try
	Err             error     // nil for a back-off
}

// ApplyResult is the result of executing a plan.
type ApplyResult struct {
	// Failures by container name; "" is the sandbox. Empty: all actions succeeded.
	Failures map[string]Failure
	// Changed reports whether a call was made that may have changed the runtime.
	Changed bool
}

// SyncResult is the result of one sync of a pod.
type SyncResult struct {
	Terminal  bool      // no container runs or will be started again
	RequeueAt time.Time // when to sync again at the latest; zero: at the resync interval
	// Unchanged means that no call was made that may have changed the runtime: the state
	// observed before the sync is still valid, and no inspection is needed.
	Unchanged bool
	// Settled means that the pod needs nothing until something changes that requests a sync,
	// or until RequeueAt. A resync of it is only a safety net, and can be rare.
	Settled bool
}

// Termination is how and why a pod is terminated: from a request of eviction, for
// example, through the worker of the pod to the runtime and the status.
type Termination struct {
	// GracePeriod is in whole seconds, and 0 only when forced. In a request 0 means the
	// pod's own, which is also the upper limit.
	GracePeriod time.Duration
	// Reason, if set, makes the phase of the pod Failed, with this reason and Message.
	Reason, Message string
	Evicted         bool // adds the condition DisruptionTarget, unless OverLimit is set too
	// OverLimit means that the pod is evicted because it exceeds a limit of its own. As with a kubelet,
	// that is no disruption: a Job that ignores disruptions would start the pod over and over.
	OverLimit bool
	Deleted   bool // no source contains the pod any more
	// Drained means that the node shuts down and the pod is still desired. The next
	// agent starts those of its containers that restart; its phase follows from them.
	Drained bool
}
