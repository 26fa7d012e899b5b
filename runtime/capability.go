package runtime

import (
	"context"
	"io"
	"net"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/capability"
)

// Capability returns an optional interface of a runtime: rt itself if it implements T,
// else the result of its method Unwrap() any if that does, and so on. With Unwrap, a
// decorator keeps the capabilities of the runtime that it decorates. It overrides one
// by implementing its methods:
//
//	type traced struct{ agent.Runtime }
//
//	func (t traced) Unwrap() any { return t.Runtime }
//
// The capabilities are ContainerRemover, LogReopener, ImageStore, ImageUser,
// ImageFSReporter, SandboxImageReporter, ContainerStatsReporter, CpusetUpdater,
// CgroupDriverReporter, TimestampedWatcher, ListedPodInspector, PodUpdater, PodDialer,
// Streamer, PodSyncer, PodLogReader, ContainerCheckpointer, PodCIDRUpdater,
// PodResourcesUpdater and OwnerSetter.
func Capability[T any](rt any) (T, bool) { return capability.Of[T](rt) }

// ContainerRemover is the capability of a runtime that keeps exited containers until
// they are removed. Without it no exited containers are collected.
type ContainerRemover interface {
	// RemoveContainer removes an exited container, RemoveSandbox a stopped sandbox and
	// the containers in it. A missing one is not an error.
	RemoveContainer(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
}

// LogReopener is the capability of a runtime that writes the logs of containers to
// files. Without it logs are not rotated.
type LogReopener interface {
	// ReopenLog makes the runtime reopen a container's log file after it was renamed.
	ReopenLog(ctx context.Context, containerID string) error
}

// ImageStore is the capability of a runtime that keeps images on the node. It is
// needed, with ImageUser and ImageFSReporter, to collect images.
type ImageStore interface {
	Images(ctx context.Context) ([]Image, error)
	// RemoveImage removes an image with all its names. For a missing image it returns
	// nil or an error that wraps ErrNotFound.
	RemoveImage(ctx context.Context, id string) error
}

// ImageUser is the capability of a runtime that reports which images are in use.
type ImageUser interface {
	// ImagesInUse returns the names and ids of the images of all containers, including
	// exited ones and those of other owners.
	ImagesInUse(ctx context.Context) ([]string, error)
}

// ImageFSReporter is the capability of a runtime that reports the file systems of
// images and containers' layers. Without it they count as on the node's file system.
type ImageFSReporter interface {
	// ImageFS measures the file systems of images, and those of containers' layers if
	// the runtime distinguishes them.
	ImageFS(ctx context.Context) (images, containers []FSUsage, err error)
}

// SandboxImageReporter is the capability of a runtime that reports the image of its
// sandboxes, so that it is not collected.
type SandboxImageReporter interface {
	// SandboxImage returns the image's reference, "" if unknown.
	SandboxImage(ctx context.Context) (string, error)
}

// ContainerStatsReporter is the capability of a runtime that measures containers.
// Without it their usage is unknown, and no pod is evicted because of it.
type ContainerStatsReporter interface {
	ContainerStats(ctx context.Context) ([]ContainerUsage, error)
}

// CpusetUpdater is the capability of a runtime that can move a running container to other
// CPUs. Package cpumanager needs it.
type CpusetUpdater interface {
	// UpdateCpuset changes the CPUs of a container, and the nodes of its memory. An empty
	// list is no change.
	UpdateCpuset(ctx context.Context, containerID string, set Cpuset) error
}

// CgroupDriverReporter is the capability of a runtime that reports its cgroup driver.
// Without it the agent uses the configured one, or cgroupfs.
type CgroupDriverReporter interface {
	// CgroupDriver returns "cgroupfs" or "systemd", or an error that wraps
	// ErrUnsupported.
	CgroupDriver(ctx context.Context) (string, error)
}

// TimestampedWatcher is the capability of a runtime whose events have the time of the
// change. Without it a pod with a late event is inspected once more.
type TimestampedWatcher interface {
	// WatchTimestamped calls notify for each pod that may have changed, with the time of
	// the change by this machine's clock, or zero if unknown. It blocks until the stream
	// breaks or ctx is done.
	WatchTimestamped(ctx context.Context, notify func(uid types.UID, at time.Time)) error
}

// ListedPodInspector is the capability of a runtime whose list of all pods saves a part
// of their inspections. Without it each pod that an agent finds when it starts, or that a later
// list shows to have changed, is inspected from scratch.
type ListedPodInspector interface {
	// InspectListedPod completes a pod of a list of all pods with what only inspections
	// return. The result contains all changes from before the list.
	InspectListedPod(ctx context.Context, listed Pod) (Pod, error)
}

// PodDialer is the capability of a runtime whose pods may have addresses that the
// network does not reach. Without it probes connect through the network.
type PodDialer interface {
	// DialContext connects to the address of a pod, or through the network to any other.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Streamer is the capability of a runtime with a streaming server. Without it there is no
// exec, attach or port-forward. Each method returns a URL of that server, which is valid
// for one connection, soon. The URL is a secret: who knows it needs no other
// authorization.
type Streamer interface {
	ExecURL(ctx context.Context, containerID string, command []string, s Streams) (*url.URL, error)
	AttachURL(ctx context.Context, containerID string, s Streams) (*url.URL, error)
	PortForwardURL(ctx context.Context, sandboxID string, ports []int32) (*url.URL, error)
}

// Streams are the streams of a process that a client uses. A terminal has no Stderr.
type Streams struct{ Stdin, Stdout, Stderr, TTY bool }

// ContainerCheckpointer is the capability of a runtime that writes the state of a running
// container to a file.
type ContainerCheckpointer interface {
	// CheckpointContainer writes an archive to path, which must be absolute, on the node. A
	// timeout of 0 is that of other calls. It returns an error that wraps ErrUnsupported if
	// the runtime lacks something for it.
	CheckpointContainer(ctx context.Context, containerID, path string, timeout time.Duration) error
}

// PodCIDRUpdater is the capability of a runtime that can make its network configuration of the
// pod CIDRs of the node, as containerd does with a conf_template. Without it the runtime has its
// own.
type PodCIDRUpdater interface {
	// UpdatePodCIDRs passes the pod CIDRs of the node, one of each IP family at most.
	UpdatePodCIDRs(ctx context.Context, cidrs []string) error
}

// PodSyncer is the capability of a runtime that runs pods as they are, and not sandboxes
// and containers: package provider has one. It observes pods as Pod.Object, whose status is
// reported unchanged. The agent makes no plan for such a pod, and neither prepares
// anything on the node for it, such as volumes and cgroups, nor probes its containers.
// Runtime.Kill and Remove terminate and delete it.
type PodSyncer interface {
	// SyncPod creates the pod if observed has no Object, and brings it up to date
	// otherwise. An error that wraps ErrInvalid says that it can never be created: the
	// phase of the pod becomes Failed. After another error the call is made again, with
	// back-off. Calls for one pod do not overlap.
	SyncPod(ctx context.Context, pod *corev1.Pod, observed Pod) (SyncResult, error)
}

// PodLogReader is the capability of a runtime that does not write the logs of containers
// to files of the node.
type PodLogReader interface {
	// ReadLog copies the log of a container, as opts say. A nil writer discards its
	// stream.
	ReadLog(ctx context.Context, pod *corev1.Pod, container string, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error
}

// OwnerSetter is the capability of a runtime that can be shared: it labels what it
// creates with its owner, and leaves the pods of other owners out of all results. An
// agent calls SetOwner once, before any other method, with the id in its root
// directory. Without it, all pods that the runtime returns count as the agent's own.
type OwnerSetter interface {
	// SetOwner sets the id, and the sources (kubernetes.io/config.source) whose pods
	// without an owner are adopted.
	SetOwner(owner string, adoptSources []string)
}

// Dialer returns the function that connects to the address of a pod: that of rt if it has
// the capability PodDialer, else one that connects through the network.
func Dialer(rt any) func(ctx context.Context, network, address string) (net.Conn, error) {
	if d, ok := Capability[PodDialer](rt); ok {
		return d.DialContext
	}
	return (&net.Dialer{KeepAlive: -1}).DialContext
}
