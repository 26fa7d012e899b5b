package provider

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime"
)

// Provider runs pods. Its methods are called concurrently for different pods, and must
// return when their context is done. Pods that it gets are its own; pods that it returns are
// copied, and must not be changed during the call.
type Provider interface {
	// CreatePod starts a pod. It need not wait until the pod runs. The error wraps
	// runtime.ErrInvalid if the provider can never run this pod, which is Failed then.
	// After any other error it is called again, with back-off.
	//
	// The UID, the namespace and the name of the pod must be found again in GetPods. It
	// is good to store its labels and annotations too.
	CreatePod(ctx context.Context, pod *corev1.Pod) error
	// DeletePod ends a pod within pod.DeletionGracePeriodSeconds, and removes it. It need
	// not wait for that: the pod has ended when GetPods returns it in phase Succeeded or
	// Failed, or no more. It is called again if the grace period is shortened, and to
	// remove a pod that has ended by itself. For a pod that does not exist it returns nil
	// or an error that wraps runtime.ErrNotFound.
	DeletePod(ctx context.Context, pod *corev1.Pod) error
	// GetPods returns the pods that CreatePod has created, by this process or an earlier
	// one, and no others: what no source of the agent contains is deleted. Their statuses
	// are current. A provider that is not a PodNotifier is called each second: see
	// pleg.Config.RelistPeriod.
	GetPods(ctx context.Context) ([]*corev1.Pod, error)
}

// PodUpdater is a Provider that can change the spec, the labels and the annotations of a
// pod. Without it a changed spec is an error, and changed labels and annotations are
// ignored.
type PodUpdater interface {
	UpdatePod(ctx context.Context, pod *corev1.Pod) error
}

// PodGetter is a Provider that can find one pod. Without it GetPods is called instead.
type PodGetter interface {
	// GetPod returns a pod, or for one that does not exist nil or an error that wraps
	// runtime.ErrNotFound.
	GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// PodNotifier is a Provider that reports changed pods. GetPods is then called every few
// minutes only.
type PodNotifier interface {
	// NotifyPods sets the function that the provider calls with a pod whose status has
	// changed, until ctx is done. It is called once, and notify does not block. The last
	// status of a pod that GetPods returns no more should be in a terminal phase.
	NotifyPods(ctx context.Context, notify func(pod *corev1.Pod))
}

// Pinger is a Provider that knows whether it works. The node is not Ready after an error,
// and running pods are left alone.
type Pinger interface {
	Ping(ctx context.Context) error
}

// LogReader is a Provider with logs.
type LogReader interface {
	// GetContainerLogs returns the log of a container as opts say: tailLines, sinceTime,
	// timestamps and the others are applied by the provider. With opts.Follow the log
	// ends with the container. The result is closed when it is not needed any more, also
	// during a Read.
	GetContainerLogs(ctx context.Context, namespace, pod, container string, opts *corev1.PodLogOptions) (io.ReadCloser, error)
}

// CommandRunner is a Provider that runs commands in containers.
type CommandRunner interface {
	// RunInContainer runs a command until it ends or ctx is done. An exit code other than
	// 0 is a podstream.ExitError.
	RunInContainer(ctx context.Context, namespace, pod, container string, command []string, streams podstream.Options) error
}

// Attacher is a Provider that connects to the streams of containers.
type Attacher interface {
	// AttachToContainer connects until the process ends or ctx is done, which only
	// disconnects. ctx also ends when the client has gone.
	AttachToContainer(ctx context.Context, namespace, pod, container string, streams podstream.Options) error
}

// PortForwarder is a Provider that connects to ports of pods.
type PortForwarder interface {
	// PortForward copies between the stream and the port until either is closed or ctx
	// is done.
	PortForward(ctx context.Context, namespace, pod string, port int32, stream io.ReadWriteCloser) error
}

// StatsReporter is a Provider that measures the containers of its pods.
type StatsReporter interface {
	ContainerStats(ctx context.Context) ([]runtime.ContainerUsage, error)
}

// unsupported is the error for what a provider does not implement.
type unsupported string

func (u unsupported) Error() string { return string(u) + " is not supported by this provider" }

// Unwrap makes it a runtime.ErrUnsupported.
func (unsupported) Unwrap() error { return runtime.ErrUnsupported }
