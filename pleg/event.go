package pleg

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

//go:generate go tool stringer -type=EventType -output=event_type_string.go

// EventType is the kind of change that an Event reports.
type EventType uint8

// The event types. Sandboxes have the same events as containers: a ready sandbox
// is running and one that is not ready has died.
const (
	// PodSync: the pod must be synced although no container changed its state. Its
	// IP addresses or the status of its object changed, or its inspection succeeded
	// after failures.
	PodSync EventType = iota
	// ContainerStarted: the container is running and was not at the previous
	// inspection.
	ContainerStarted
	// ContainerDied: the container has exited, or was removed before an inspection
	// found it exited.
	ContainerDied
	// ContainerRemoved: the container does not exist any more.
	ContainerRemoved
	// ContainerChanged: the container is created or in an unknown state, or its
	// resources were changed in place.
	ContainerChanged
)

// Event is one change of one pod.
type Event struct {
	Type EventType
	UID  types.UID
	// ID of the container or sandbox. It is empty for PodSync and for the
	// ContainerRemoved of a container that no inspection found.
	ID string
	// Name of the container; empty for sandboxes.
	Name    string
	Attempt uint32
	// State after the change; a ready sandbox is Running. Not set for
	// ContainerRemoved.
	State runtime.ContainerState
	// ExitCode is valid if HasExitCode is true: for the ContainerDied of a
	// container that still exists in the runtime.
	ExitCode    int32
	HasExitCode bool
}

// String returns the event as one line of text.
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
