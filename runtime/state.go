package runtime

//go:generate go tool stringer -type=ContainerState,SandboxState,ContainerType,ActionType,ProbeResult -output=state_string.go

// ContainerState is the life stage of a container.
type ContainerState uint8

// The states, in the order a container goes through them. Unknown is told by a
// runtime that lost track of the container; a plan treats it as a failure.
const (
	Unknown ContainerState = iota
	Created
	Running
	Exited
)

// SandboxState is the life stage of a pod sandbox.
type SandboxState uint8

// The sandbox states. A sandbox that is not ready never becomes ready again.
const (
	SandboxNotReady SandboxState = iota
	SandboxReady
)

// ContainerType tells which list of the pod spec a container stands in.
type ContainerType uint8

// The kinds of container. A Sidecar is an init container whose restartPolicy is
// Always (KEP-753).
const (
	Regular ContainerType = iota
	Init
	Sidecar
	Ephemeral
)
