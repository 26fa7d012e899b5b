package timeline

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Health is how urgently a person should look at a pod.
type Health string

// The states of health.
const (
	Failing     Health = "failing"     // it does not work, and waiting alone may not change that
	Progressing Health = "progressing" // it starts, terminates or is not ready
	Healthy     Health = "healthy"     // all containers are ready
	Completed   Health = "completed"   // all containers have succeeded
	Deleted     Health = "gone"        // nothing of it is left on the node
)

// Pod is the newest state of a pod.
type Pod struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Source    string    `json:"source,omitempty"`
	Static    bool      `json:"static,omitempty"`

	State      string    `json:"state"` // as kubectl's column STATUS: Running, CrashLoopBackOff, Init:0/2, ...
	Health     Health    `json:"health"`
	Message    string    `json:"message,omitempty"` // why it is in that state, if known
	Since      time.Time `json:"since"`             // when State became what it is
	Ready      int       `json:"ready"`             // containers
	Containers int       `json:"containers"`
	Restarts   int32     `json:"restarts"`
	ReceivedAt time.Time `json:"seen,omitzero"` // when its source delivered it first
	DeletedAt  time.Time `json:"gone,omitzero"`

	Version uint64 `json:"version"` // of the History when the pod changed last
}

// Container is the newest state of a container.
type Container struct {
	Name     string `json:"name"`
	Type     string `json:"type"` // init, sidecar, ephemeral or ""
	Image    string `json:"image"`
	State    string `json:"state"` // Running, Completed, or the reason why it waits or has failed
	Ready    bool   `json:"ready"`
	Restarts int32  `json:"restarts"`
	Message  string `json:"message,omitempty"`
}

// Timeline is all that is known of a pod.
type Timeline struct {
	Pod
	ContainerStates []Container `json:"containerStates"`
	Entries         []Entry     `json:"entries"` // in the order in which they began
	Dropped         int         `json:"dropped"` // entries, between the first and the others
}

// Kind is what an Entry is about.
type Kind string

// The kinds of entries. Those that take time have an End that differs from Start.
const (
	KindReceived    Kind = "seen" // a source delivered the pod
	KindAdmitted    Kind = "admitted"
	KindAdopted     Kind = "adopted" // it ran already
	KindRejected    Kind = "rejected"
	KindVolumes     Kind = "volumes" // mounted
	KindPull        Kind = "pull"
	KindSandbox     Kind = "sandbox" // created
	KindCreate      Kind = "create"  // a container
	KindStart       Kind = "start"   // a container
	KindRun         Kind = "run"     // of a container, until it exits
	KindReady       Kind = "ready"
	KindNotReady    Kind = "not ready"
	KindBackOff     Kind = "back-off" // until End
	KindHook        Kind = "hook"     // postStart or preStop
	KindKill        Kind = "kill"     // of a container
	KindStopSandbox Kind = "stop sandbox"
	KindSyncFailed  Kind = "sync failed"
	KindEvicted     Kind = "evicted"
	KindTerminating Kind = "terminating" // the request; Reason is the cause
	KindTerminated  Kind = "terminated"  // no container runs
	KindFinished    Kind = "finished"    // its resources are released
	KindDeleted     Kind = "gone"        // nothing is left, and no source contains it
)

// Entry is something that happened to a pod.
type Entry struct {
	ID        uint64 `json:"id"` // within the pod
	Kind      Kind   `json:"kind"`
	Container string `json:"container,omitempty"` // "": it is about the pod
	// Start and End are equal if it took no time. A zero End means that it lasts.
	Start time.Time `json:"start"`
	End   time.Time `json:"end,omitzero"`
	Count int       `json:"count,omitempty"` // how often it was repeated; the times are of the first and the last

	Failed      bool   `json:"failed,omitempty"`
	Reason      string `json:"reason,omitempty"`
	Message     string `json:"message,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	ExitCode    *int32 `json:"exitCode,omitempty"` // of a run that has ended
	Image       string `json:"image,omitempty"`
	Bytes       uint64 `json:"bytes,omitempty"` // of the image
	Volumes     int    `json:"volumes,omitempty"`
}

// repeats reports whether e is the same as the entry before it, at a later time. Only
// failures repeat: what succeeds is progress.
func (e *Entry) repeats(last *Entry) bool {
	if !e.Failed || e.End.IsZero() || last.End.IsZero() {
		return false
	}
	a, b := *e, *last
	a.ID, a.Count, a.Start, a.End = b.ID, b.Count, b.Start, b.End
	return a == b
}
