// Package podops has the operations on the pods of a node that operators ask for by name:
// logs, exec, attach, port-forward, restart, evict and drain. An Operator resolves the
// names against the pods and the runtime as observed, and leaves the work to the packages
// behind its small interfaces. It is the LogReader, Streamer, CommandRunner and
// Checkpointer of package server.
package podops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podlogs"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Errors that callers branch on. runtime.ErrNotFound is wrapped for unknown pods and
// containers, runtime.ErrUnsupported for what the runtime cannot do.
var (
	// ErrNotRunning: the container does not run, so there is nothing to connect to or to restart.
	ErrNotRunning = errors.New("container is not running")
	// ErrContainerRequired: a pod has several containers.
	ErrContainerRequired = errors.New("a container name must be specified")
)

// Config describes an Operator. All fields but Checkpointer and CheckpointsDir are required.
type Config struct {
	Pods     func() []*corev1.Pod // of the node, each with its newest status. See status.View
	PodCache PodCache
	Runtime  Runtime // exec, attach and port-forward need its capability runtime.Streamer
	Workers  Workers
	Logs     Logs
	// Checkpointer writes checkpoints into CheckpointsDir, an absolute path. Default: the capability of Runtime; without
	// a directory none are written
	Checkpointer   func() (runtime.ContainerCheckpointer, bool)
	CheckpointsDir string
}

// PodCache has the observed state of pods. *podcache.Cache is one.
type PodCache interface {
	Get(uid types.UID) (runtime.Pod, bool)
	Pods() []runtime.Pod
}

// Runtime ends containers and runs commands in them. *cri.Client is one. It can have the
// capability runtime.PodLogReader.
type Runtime interface {
	Apply(ctx context.Context, pod *corev1.Pod, plan []runtime.Action, opts runtime.RunOptions) runtime.ApplyResult
	Exec(ctx context.Context, containerID string, command []string, timeout time.Duration, limit int) (output []byte, exitCode int, err error)
}

// Workers terminate pods. podworkers.Evictor is one.
type Workers interface {
	// Evict terminates the pod and waits until it has finished or ctx is done.
	Evict(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error
	// Recreate terminates the pod, waits until it has a new worker, and has it started again.
	Recreate(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error
}

// Logs copies logs. *podlogs.Reader is one.
type Logs interface {
	Copy(ctx context.Context, stdout, stderr io.Writer, log podlogs.Log, o *corev1.PodLogOptions) error
}

// Operator operates on pods. Its methods can be called concurrently.
type Operator struct{ cfg Config }

// New returns an Operator. It does no I/O.
func New(cfg Config) (*Operator, error) {
	if cfg.Pods == nil || cfg.PodCache == nil || cfg.Runtime == nil || cfg.Workers == nil || cfg.Logs == nil {
		return nil, errors.New("podops: Config.Pods, PodCache, Runtime, Workers and Logs required")
	}
	switch {
	case cfg.CheckpointsDir == "":
		cfg.Checkpointer = func() (runtime.ContainerCheckpointer, bool) { return nil, false }
	case cfg.Checkpointer == nil:
		cfg.Checkpointer = func() (runtime.ContainerCheckpointer, bool) {
			return runtime.Capability[runtime.ContainerCheckpointer](cfg.Runtime)
		}
	}
	return &Operator{cfg}, nil
}

// Pods returns the pods that this node runs, and those that have ended and are still
// desired, each with its newest status. They are read-only.
//
// A pod of which only the status that an earlier process stored is known is returned as it
// is observed in the runtime now, with unknown readiness. It is neither restarted nor probed
// until its source has synced, and its status is not sent to sinks before.
func (o *Operator) Pods() []*corev1.Pod { return o.cfg.Pods() }

// Pod returns a pod by its name, with its newest status; read-only. Of several, as while
// one replaces another, it returns the one that is not terminating, and of these the
// newest.
func (o *Operator) Pod(namespace, name string) (*corev1.Pod, error) {
	var found *corev1.Pod
	for _, pod := range o.cfg.Pods() {
		if pod.Namespace == namespace && pod.Name == name && (found == nil || podspec.Replaces(pod, found)) {
			found = pod
		}
	}
	if found == nil {
		return nil, fmt.Errorf("pod %s/%s: %w on this node", namespace, name, runtime.ErrNotFound)
	}
	return found, nil
}

// annotationDefaultContainer is kubectl's.
const annotationDefaultContainer = "kubectl.kubernetes.io/default-container"

// Container returns the name of the container that is meant if none is given: the one that
// the annotation of kubectl names, or the only one.
func Container(pod *corev1.Pod, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	if name = pod.Annotations[annotationDefaultContainer]; name != "" {
		return name, nil
	}
	if len(pod.Spec.Containers) == 1 {
		return pod.Spec.Containers[0].Name, nil
	}
	var names []string
	for i := range pod.Spec.Containers {
		names = append(names, pod.Spec.Containers[i].Name)
	}
	return "", fmt.Errorf("pod %s: %w; choose one of %q", fullName(pod), ErrContainerRequired, names)
}

func fullName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// observed returns the pod as it is in the runtime.
func (o *Operator) observed(pod *corev1.Pod) (*runtime.Pod, error) {
	observed, ok := o.cfg.PodCache.Get(pod.UID)
	if !ok {
		return nil, fmt.Errorf("pod %s in the runtime: %w%s", fullName(pod), runtime.ErrNotFound, waitingReason(pod, ""))
	}
	observed.Namespace, observed.Name = pod.Namespace, pod.Name
	return &observed, nil
}

// waitingReason says why a container, or any, has not started.
func waitingReason(pod *corev1.Pod, container string) string {
	for c := range podspec.ContainerStatuses(&pod.Status) {
		if w := c.State.Waiting; w != nil && (container == "" || c.Name == container) {
			return fmt.Sprintf("; container %q is waiting to start: %s %s", c.Name, w.Reason, w.Message)
		}
	}
	if pod.Status.Reason != "" {
		return fmt.Sprintf("; the pod is %s: %s %s", pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
	}
	return ""
}

// running returns a running container.
func (o *Operator) running(pod *corev1.Pod, container string) (*runtime.Container, error) {
	container, err := Container(pod, container)
	if err != nil {
		return nil, err
	}
	observed, err := o.observed(pod)
	if err != nil {
		return nil, err
	}
	c := observed.LatestContainer(container)
	if observed.Object != nil {
		c = observed.ObjectContainer(pod, container)
	}
	err = nil
	if c == nil {
		err = runtime.ErrNotFound
	} else if c.State != runtime.Running {
		err = ErrNotRunning
	}
	if err != nil {
		return nil, fmt.Errorf("container %q of pod %s: %w%s", container, fullName(pod), err, waitingReason(pod, container))
	}
	return c, nil
}

// ReadLog writes the log of a container, as podlogs.Reader.Copy. opts.Container and
// opts.Previous choose it.
func (o *Operator) ReadLog(ctx context.Context, pod *corev1.Pod, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error {
	name, err := Container(pod, opts.Container)
	if err != nil {
		return err
	}
	observed, err := o.observed(pod)
	if err != nil {
		return err
	}
	if reader, ok := runtime.Capability[runtime.PodLogReader](o.cfg.Runtime); ok {
		if runtime.ContainerSpec(pod, name) == nil {
			return fmt.Errorf("container %q of pod %s/%s: %w", name, pod.Namespace, pod.Name, runtime.ErrNotFound)
		}
		return reader.ReadLog(ctx, pod, name, opts, stdout, stderr)
	}
	c, err := podlogs.Find(observed, name, opts.Previous && !isPrevious(observed.LatestContainer(name), pod))
	if err != nil {
		return fmt.Errorf("%w%s", err, waitingReason(pod, name))
	}
	path, err := podlogs.Path(observed, c)
	if err != nil {
		return err
	}
	return o.cfg.Logs.Copy(ctx, stdout, stderr, podlogs.Log{Path: path, IsRunning: o.isRunning(pod.UID, c.ID)}, opts)
}

// isPrevious reports whether the latest attempt of a container is its previous one
// already: it has exited and the next one is waiting to start, as during a back-off.
func isPrevious(latest *runtime.Container, pod *corev1.Pod) bool {
	if latest == nil || latest.State != runtime.Exited {
		return false
	}
	for c := range podspec.ContainerStatuses(&pod.Status) {
		if c.Name == latest.Name {
			return c.State.Waiting != nil
		}
	}
	return false
}

// isRunning returns whether a container may still write.
func (o *Operator) isRunning(uid types.UID, id string) func() bool {
	return func() bool {
		pod, _ := o.cfg.PodCache.Get(uid)
		for i := range pod.Containers {
			if pod.Containers[i].ID == id {
				return pod.Containers[i].State != runtime.Exited
			}
		}
		return false
	}
}

// RunCommand runs a command in a container and returns its output. An exit code other
// than 0 is an error.
func (o *Operator) RunCommand(ctx context.Context, pod *corev1.Pod, container string, command []string) ([]byte, error) {
	c, err := o.running(pod, container)
	if err != nil {
		return nil, err
	}
	output, code, err := o.cfg.Runtime.Exec(ctx, c.ID, command, commandTimeout, maxOutput)
	if err == nil && code != 0 {
		err = fmt.Errorf("command terminated with exit code %d", code)
	}
	return output, err
}

// Limits of RunCommand.
const (
	commandTimeout = 2 * time.Minute
	maxOutput      = 16 << 20
)

// streamer returns that of the runtime.
func (o *Operator) streamer() (runtime.Streamer, error) {
	s, ok := runtime.Capability[runtime.Streamer](o.cfg.Runtime)
	if !ok {
		return nil, fmt.Errorf("the runtime has no streaming server: %w", runtime.ErrUnsupported)
	}
	return s, nil
}

// connect returns a running container and the streamer that connects to it.
func (o *Operator) connect(pod *corev1.Pod, container string) (*runtime.Container, runtime.Streamer, error) {
	c, err := o.running(pod, container)
	if err != nil {
		return nil, nil, err
	}
	s, err := o.streamer()
	return c, s, err
}

// ExecURL prepares a command in a running container.
func (o *Operator) ExecURL(ctx context.Context, pod *corev1.Pod, opts *corev1.PodExecOptions) (*url.URL, error) {
	c, s, err := o.connect(pod, opts.Container)
	if err != nil {
		return nil, err
	}
	return s.ExecURL(ctx, c.ID, opts.Command, runtime.Streams{Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, TTY: opts.TTY})
}

// AttachURL prepares a connection to a running container. It has a terminal if the spec of
// the container has one.
func (o *Operator) AttachURL(ctx context.Context, pod *corev1.Pod, opts *corev1.PodAttachOptions) (*url.URL, error) {
	c, s, err := o.connect(pod, opts.Container)
	if err != nil {
		return nil, err
	}
	tty := hasTTY(pod, c.Name, opts.TTY)
	return s.AttachURL(ctx, c.ID, runtime.Streams{Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr && !tty, TTY: tty})
}

// hasTTY returns whether the spec of a container asks for a terminal, or unknown if the pod
// has no such container.
func hasTTY(pod *corev1.Pod, container string, unknown bool) bool {
	if spec := runtime.ContainerSpec(pod, container); spec != nil {
		return spec.TTY
	}
	return unknown
}

// PortForwardURL prepares connections to ports of a pod.
func (o *Operator) PortForwardURL(ctx context.Context, pod *corev1.Pod, opts *corev1.PodPortForwardOptions) (*url.URL, error) {
	observed, err := o.observed(pod)
	if err != nil {
		return nil, err
	}
	sandbox := observed.ReadySandbox()
	if observed.Object != nil && observed.CouldHaveRunningContainers() {
		sandbox = &runtime.Sandbox{ID: string(pod.UID)} // see runtime.SplitObjectID
	}
	if sandbox == nil {
		return nil, fmt.Errorf("sandbox of pod %s: %w%s", fullName(pod), runtime.ErrNotFound, waitingReason(pod, ""))
	}
	s, err := o.streamer()
	if err != nil {
		return nil, err
	}
	return s.PortForwardURL(ctx, sandbox.ID, opts.Ports)
}
