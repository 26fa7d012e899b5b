package podops

import (
	"context"
	"io"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime"
)

// Logs is ReadLog by name.
func (o *Operator) Logs(ctx context.Context, namespace, name string, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error {
	pod, err := o.Pod(namespace, name)
	if err != nil {
		return err
	}
	return o.ReadLog(ctx, pod, opts, stdout, stderr)
}

// Exec runs a command in a container. Another exit code than 0 is a podstream.ExitError.
func (o *Operator) Exec(ctx context.Context, namespace, name, container string, command []string, s podstream.Options) error {
	return o.stream(ctx, namespace, name, s, func(pod *corev1.Pod) (*url.URL, error) {
		return o.ExecURL(ctx, pod, &corev1.PodExecOptions{
			Container: container, Command: command, Stdin: s.Stdin != nil, Stdout: s.Stdout != nil, Stderr: s.Stderr != nil && !s.TTY, TTY: s.TTY,
		})
	})
}

// Attach connects to the process of a container. s.TTY is that of the container's spec.
func (o *Operator) Attach(ctx context.Context, namespace, name, container string, s podstream.Options) error {
	pod, err := o.Pod(namespace, name)
	if err != nil {
		return err
	}
	if container, err = Container(pod, container); err != nil {
		return err
	}
	if spec := runtime.ContainerSpec(pod, container); spec != nil {
		s.TTY = spec.TTY
	}
	return o.stream(ctx, namespace, name, s, func(pod *corev1.Pod) (*url.URL, error) {
		return o.AttachURL(ctx, pod, &corev1.PodAttachOptions{
			Container: container, Stdin: s.Stdin != nil, Stdout: s.Stdout != nil, Stderr: s.Stderr != nil && !s.TTY, TTY: s.TTY,
		})
	})
}

func (o *Operator) stream(ctx context.Context, namespace, name string, s podstream.Options, prepare func(*corev1.Pod) (*url.URL, error)) error {
	pod, err := o.Pod(namespace, name)
	if err != nil {
		return err
	}
	u, err := prepare(pod)
	if err != nil {
		return err
	}
	return new(podstream.Client).Stream(ctx, u, s)
}

// PortForward connects to the ports of a pod. The caller closes the result.
func (o *Operator) PortForward(ctx context.Context, namespace, name string) (*podstream.Forwarder, error) {
	pod, err := o.Pod(namespace, name)
	if err != nil {
		return nil, err
	}
	u, err := o.PortForwardURL(ctx, pod, &corev1.PodPortForwardOptions{})
	if err != nil {
		return nil, err
	}
	return new(podstream.Client).PortForward(ctx, u)
}

// Restart restarts a container or, for an empty name, the pod.
func (o *Operator) Restart(ctx context.Context, namespace, name, container string) error {
	pod, err := o.Pod(namespace, name)
	switch {
	case err != nil:
		return err
	case container == "":
		return o.RestartPod(ctx, pod)
	}
	return o.RestartContainer(ctx, pod, container)
}

// EvictByName is Evict by name.
func (o *Operator) EvictByName(ctx context.Context, namespace, name string, gracePeriod time.Duration) error {
	pod, err := o.Pod(namespace, name)
	if err != nil {
		return err
	}
	return o.Evict(ctx, pod, gracePeriod)
}
