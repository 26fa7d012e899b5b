package agent

import (
	"context"
	"io"
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podlogs"
	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/podwatch"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// Operator returns the operations on pods by object instead of by name, such as package server uses them.
func (a *Agent) Operator() *podops.Operator { return a.operator }

// Pod returns a pod by its name. See podops.Operator.Pod.
func (a *Agent) Pod(namespace, name string) (*corev1.Pod, error) {
	return a.operator.Pod(namespace, name)
}

// Watch yields the pods that there are and then their changes, until ctx is done. A slow caller gets the newest states, and
// how many it has missed. See podwatch.Hub.Watch.
func (a *Agent) Watch(ctx context.Context) iter.Seq[podwatch.Event] { return a.c.watchers.Watch(ctx) }

// Logs writes the log of a container of a pod, whose name may be empty if there is only one. See podlogs.Reader.Copy.
func (a *Agent) Logs(ctx context.Context, namespace, name string, o *corev1.PodLogOptions, stdout, stderr io.Writer) error {
	return a.operator.Logs(ctx, namespace, name, o, stdout, stderr)
}

// Exec runs a command in a container of a pod, with the streams of o. Another exit code than 0 is a podstream.ExitError.
func (a *Agent) Exec(ctx context.Context, namespace, name, container string, command []string, o podstream.Options) error {
	return a.operator.Exec(ctx, namespace, name, container, command, o)
}

// Attach connects to the process of a container of a pod.
func (a *Agent) Attach(ctx context.Context, namespace, name, container string, o podstream.Options) error {
	return a.operator.Attach(ctx, namespace, name, container, o)
}

// PortForward connects to the ports of a pod. The caller closes the result.
func (a *Agent) PortForward(ctx context.Context, namespace, name string) (*podstream.Forwarder, error) {
	return a.operator.PortForward(ctx, namespace, name)
}

// Restart restarts one container of a pod or, for an empty name, the pod with its sandbox. See podops.Operator.Restart.
func (a *Agent) Restart(ctx context.Context, namespace, name, container string) error {
	return a.operator.Restart(ctx, namespace, name, container)
}

// Evict terminates a pod, which then is Failed. See podops.Operator.Evict.
func (a *Agent) Evict(ctx context.Context, namespace, name string, gracePeriod time.Duration) error {
	return a.operator.EvictByName(ctx, namespace, name, gracePeriod)
}

// Drain evicts the pods of the node. See podops.Operator.Drain.
func (a *Agent) Drain(ctx context.Context, o podops.DrainOptions) error {
	return a.operator.Drain(ctx, o)
}

// newOperator returns the Operator of an agent.
func newOperator(a *Agent) (*podops.Operator, error) {
	c := a.c
	logs, err := podlogs.New(podlogs.Config{LogsDir: c.Node.PodLogsDir, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	return podops.New(podops.Config{
		Pods: a.Pods, PodCache: c.PodCache, Runtime: c.Runtime, Logs: logs,
		Workers: struct {
			podworkers.Evictor
			podworkers.Recreator
		}{c.evictor(), podworkers.Recreator{Workers: c.PodWorkers}},
		Streamer: func() (runtime.Streamer, bool) { return runtime.Capability[runtime.Streamer](c.Runtime) }, CheckpointsDir: c.path("checkpoints"),
		Checkpointer: func() (runtime.ContainerCheckpointer, bool) {
			return runtime.Capability[runtime.ContainerCheckpointer](c.Runtime)
		},
	})
}
