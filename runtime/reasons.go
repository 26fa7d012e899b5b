package runtime

// Reasons of actions. CrashLoopBackOff becomes a waiting reason in the status and Unhealthy
// the reason of an event, as with the kubelet; the others are for logs and hooks.
const (
	ReasonCrashLoop          = "CrashLoopBackOff"     // Wait: the container has exited too often
	ReasonUnhealthy          = "Unhealthy"            // its liveness or startup probe has failed
	ReasonSpecChanged        = "SpecChanged"          // it was created from another spec
	ReasonResized            = "Resized"              // its resources differ from the spec
	ReasonUnknown            = "Unknown"              // its state in the runtime is unknown
	ReasonStale              = "Stale"                // it belongs to an older sandbox, or is a duplicate
	ReasonNotInSpec          = "NotInSpec"            // the spec has no container of that name
	ReasonNotStarted         = "NotStarted"           // it was created but never started
	ReasonRestartAll         = "RestartAllContainers" // a restart rule restarts all containers
	ReasonSandboxLost        = "SandboxLost"          // the newest sandbox is not ready
	ReasonMultipleSandboxes  = "ManySandboxes"        // more than one sandbox is ready
	ReasonNetworkModeChanged = "NetworkModeChanged"   // spec.hostNetwork has changed
	ReasonNoPodIP            = "NoAddress"            // the sandbox has lost its IP address
	ReasonPodTerminal        = "PodDone"              // no container will be started any more
	ReasonTargetNotRunning   = "TargetNotRunning"     // Wait: the target of an ephemeral container does not run
)

// ReasonOOMKilled is the Reason of a container of which the kernel has killed a process for
// lack of memory.
const ReasonOOMKilled = "OOMKilled"
