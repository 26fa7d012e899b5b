package pleg

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

//go:generate go tool stringer -type=EventType -output=event_type_string.go

// EventType says what happened to a pod.
type EventType uint8

// The kinds of event. Sandboxes are told of like containers: a ready one runs,
// one that is not ready has died.
const (
	// PodSync: the pod must be looked at, though no container changed its state:
	// its addresses changed, or it can be inspected again after it could not.
	PodSync EventType = iota
	// ContainerStarted: it runs, and did not when last seen.
	ContainerStarted
	// ContainerDied: it has ended, or is gone without having been seen ended.
	ContainerDied
	// ContainerRemoved: it is gone.
	ContainerRemoved
	// ContainerChanged: it is created or in an unknown state, or its resources
	// were changed in place.
	ContainerChanged
)

// Event is one transition of one pod.
type Event struct {
	Type EventType
	UID  types.UID
	// ID of the container or sandbox. It is empty for a PodSync and for the
	// ContainerRemoved of what was never seen.
	ID string
	// Name of the container; empty for sandboxes.
	Name    string
	Attempt uint32
	// State it is in now; a ready sandbox is Running. Not for ContainerRemoved.
	State runtime.ContainerState
	// ExitCode of the ContainerDied of a container that the runtime still has:
	// HasExitCode tells.
	ExitCode    int32
	HasExitCode bool
}

// String returns the event in one line.
func (e Event) String() string {
	s := fmt.Sprintf("%s pod=%s", e.Type, e.UID)
	switch {
	case e.Name != "":
		s += fmt.Sprintf(" container=%s/%d", e.Name, e.Attempt)
	case e.ID != "":
		s += fmt.Sprintf(" sandbox=%d", e.Attempt)
	}
	if e.ID != "" {
		s += " id=" + e.ID
	}
	if e.HasExitCode {
		s += fmt.Sprintf(" exit=%d", e.ExitCode)
	}
	return s
}
