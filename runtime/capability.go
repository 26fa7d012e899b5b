package runtime

import (
	"context"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/capability"
)

// Capability returns what rt can do besides what is required of it: rt itself if it
// is a T, else what its method Unwrap() any returns if that is one, and so on. A
// decorator of a runtime keeps the capabilities of what it decorates by that method,
// and changes one by having its methods itself:
//
//	type traced struct{ agent.Runtime }
//
//	func (t traced) Unwrap() any { return t.Runtime }
//
// The capabilities are ContainerRemover, LogReopener, ImageStore, ImageUser,
// ImageFSReporter, SandboxImageReporter, ContainerStatsReporter,
// CgroupDriverReporter, TimestampedWatcher, PodUpdater, PodDialer and OwnerSetter.
func Capability[T any](rt any) (T, bool) { return capability.Of[T](rt) }

// ContainerRemover is the capability of a runtime that keeps what is dead until
// somebody removes it. Without it no dead containers are collected.
type ContainerRemover interface {
	// RemoveContainer removes one dead container, RemoveSandbox a stopped sandbox and
	// what is dead in it. One that is not there is no error.
	RemoveContainer(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
}

// LogReopener is the capability of a runtime that writes the logs of containers to
// files. Without it logs are not rotated.
type LogReopener interface {
	// ReopenLog has a container's log file opened anew, after it was renamed.
	ReopenLog(ctx context.Context, containerID string) error
}

// ImageStore is the capability of a runtime that keeps images on the node. It is
// needed, with ImageUser and ImageFSReporter, to collect images.
type ImageStore interface {
	Images(ctx context.Context) ([]Image, error)
	// RemoveImage removes an image with all its names. One that is not there is no
	// error, or one that wraps ErrNotFound.
	RemoveImage(ctx context.Context, id string) error
}

// ImageUser is the capability of a runtime that tells which images are in use.
type ImageUser interface {
	// ImagesInUse returns the names and ids of the images that containers were made
	// from, dead ones too, whoever made them.
	ImagesInUse(ctx context.Context) ([]string, error)
}

// ImageFSReporter is the capability of a runtime that tells where images and
// containers' layers are. Without it they count as on the node's file system.
type ImageFSReporter interface {
	// ImageFS measures the file systems that hold images, and those that hold
	// containers' layers where they are told apart.
	ImageFS(ctx context.Context) (images, containers []FSUsage, err error)
}

// SandboxImageReporter is the capability of a runtime that tells which image its
// sandboxes are made from, so that it is not collected.
type SandboxImageReporter interface {
	// SandboxImage returns the image's reference, "" where it is not known.
	SandboxImage(ctx context.Context) (string, error)
}

// ContainerStatsReporter is the capability of a runtime that measures containers.
// Without it nothing is known of what they use, and no pod is chosen for it.
type ContainerStatsReporter interface {
	ContainerStats(ctx context.Context) ([]ContainerUsage, error)
}

// CgroupDriverReporter is the capability of a runtime that tells how it names
// cgroups. Without it the agent takes the configured way, or cgroupfs.
type CgroupDriverReporter interface {
	// CgroupDriver returns "cgroupfs" or "systemd". A runtime that cannot tell
	// returns an error that wraps ErrUnsupported.
	CgroupDriver(ctx context.Context) (string, error)
}

// TimestampedWatcher is the capability of a runtime whose event stream tells when a
// change happened. Without it a change that is told late is inspected once more.
type TimestampedWatcher interface {
	// WatchTimestamped calls hint for each pod in which something may have changed, with the
	// time of the change by this machine's clock, zero where it is not known, until
	// the stream breaks or ctx ends.
	WatchTimestamped(ctx context.Context, hint func(uid types.UID, at time.Time)) error
}

// PodDialer is the capability of a runtime whose pods may have addresses that are not
// those of the network. Without it probes connect on the network.
type PodDialer interface {
	// DialContext connects to the address of a pod, or on the network to any other.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// OwnerSetter is the capability of a runtime that others may have pods in too: it
// marks what it makes with its owner, and keeps the pods of others out of
// everything it tells. An agent calls SetOwner once, before anything else, with the
// id that it keeps in its root directory. A runtime without it has no pods but the
// agent's: all that its Pods returns is taken for the agent's own.
type OwnerSetter interface {
	// SetOwner sets the id, and the sources (kubernetes.io/config.source) of pods
	// that bear no id and are to be taken for the owner's.
	SetOwner(owner string, adoptSources []string)
}
