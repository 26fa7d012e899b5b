package runtime

// Reasons of actions: why a plan does what it does. The first is the kubelet's
// and shows as a waiting reason in status; so does Unhealthy, in events.
const (
	ReasonCrashLoop          = "CrashLoopBackOff"     // Wait: it ended too often
	ReasonUnhealthy          = "Unhealthy"            // its liveness or startup probe failed
	ReasonSpecChanged        = "SpecChanged"          // it was made from another spec
	ReasonResized            = "Resized"              // its resources differ from the spec's
	ReasonUnknown            = "Unknown"              // the runtime lost track of it
	ReasonStale              = "Stale"                // of an older sandbox, or one too many
	ReasonNotInSpec          = "NotInSpec"            // the pod has no container of that name
	ReasonNotStarted         = "NotStarted"           // made, but never started
	ReasonRestartAll         = "RestartAllContainers" // a restart rule restarts the whole pod
	ReasonSandboxLost        = "SandboxLost"          // the newest sandbox is not ready
	ReasonMultipleSandboxes  = "ManySandboxes"        // more than one is ready
	ReasonNetworkModeChanged = "NetworkModeChanged"   // host network or not: the spec changed
	ReasonNoPodIP            = "NoAddress"            // the sandbox lost its IP
	ReasonPodTerminal        = "PodDone"              // every container is done for good
	ReasonTargetNotRunning   = "TargetNotRunning"     // Wait: the container whose processes it is to see does not run
)

// ReasonOOMKilled is what a runtime gives as the Reason of a container of which a
// process was killed for lack of memory.
const ReasonOOMKilled = "OOMKilled"
