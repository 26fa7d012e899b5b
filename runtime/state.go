package runtime

//go:generate go tool stringer -type=ContainerState,SandboxState,ContainerType,ActionType,ProbeResult -output=state_string.go

// ContainerState is the lifecycle state of a container.
type ContainerState uint8

// The states, in the order of the lifecycle. Unknown is reported by a runtime that lost
// track of the container; Plan treats it as a failure.
const (
	Unknown ContainerState = iota
	Created
	Running
	Exited
)

// SandboxState is the lifecycle state of a pod sandbox.
type SandboxState uint8

// The sandbox states. A sandbox that is not ready never becomes ready again.
const (
	SandboxNotReady SandboxState = iota
	SandboxReady
)

// ContainerType is the list of the pod spec that contains a container.
type ContainerType uint8

// The container types. A Sidecar is an init container whose restartPolicy is
// Always (KEP-753).
const (
	Regular ContainerType = iota
	Init
	Sidecar
	Ephemeral
)
