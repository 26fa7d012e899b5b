package podops

import (
	"context"
	"io"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podstream"
)

// named calls do with the pod of that name.
func (o *Operator) named(namespace, name string, do func(pod *corev1.Pod) error) error {
	pod, err := o.Pod(namespace, name)
	if err != nil {
		return err
	}
	return do(pod)
}

// Logs writes the log of a container of a pod; opts.Container may be empty if there is only
// one. See podlogs.Reader.Copy.
func (o *Operator) Logs(ctx context.Context, namespace, name string, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error {
	return o.named(namespace, name, func(pod *corev1.Pod) error { return o.ReadLog(ctx, pod, opts, stdout, stderr) })
}

// Exec runs a command in a container, with the streams of s. Another exit code than 0 is a
// podstream.ExitError.
func (o *Operator) Exec(ctx context.Context, namespace, name, container string, command []string, s podstream.Options) error {
	return o.named(namespace, name, func(pod *corev1.Pod) error {
		u, err := o.ExecURL(ctx, pod, &corev1.PodExecOptions{
			Container: container, Command: command, Stdin: s.Stdin != nil, Stdout: s.Stdout != nil, Stderr: s.Stderr != nil && !s.TTY, TTY: s.TTY,
		})
		return stream(ctx, u, err, s)
	})
}

// Attach connects to the process of a container. s.TTY is that of the container's spec.
func (o *Operator) Attach(ctx context.Context, namespace, name, container string, s podstream.Options) error {
	return o.named(namespace, name, func(pod *corev1.Pod) error {
		container, err := Container(pod, container)
		if err != nil {
			return err
		}
		s.TTY = hasTTY(pod, container, s.TTY)
		u, err := o.AttachURL(ctx, pod, &corev1.PodAttachOptions{
			Container: container, Stdin: s.Stdin != nil, Stdout: s.Stdout != nil, Stderr: s.Stderr != nil && !s.TTY, TTY: s.TTY,
		})
		return stream(ctx, u, err, s)
	})
}

// stream connects the streams of s to u, unless preparing it has failed.
func stream(ctx context.Context, u *url.URL, err error, s podstream.Options) error {
	if err != nil {
		return err
	}
	return new(podstream.Client).Stream(ctx, u, s)
}

// PortForward connects to the ports of a pod. The caller closes the result.
func (o *Operator) PortForward(ctx context.Context, namespace, name string) (f *podstream.Forwarder, err error) {
	err = o.named(namespace, name, func(pod *corev1.Pod) error {
		u, err := o.PortForwardURL(ctx, pod, &corev1.PodPortForwardOptions{})
		if err != nil {
			return err
		}
		f, err = new(podstream.Client).PortForward(ctx, u)
		return err
	})
	return f, err
}

// Restart restarts one container of a pod or, for an empty name, the pod with its sandbox.
// See RestartContainer and RestartPod.
func (o *Operator) Restart(ctx context.Context, namespace, name, container string) error {
	return o.named(namespace, name, func(pod *corev1.Pod) error {
		if container == "" {
			return o.RestartPod(ctx, pod)
		}
		return o.RestartContainer(ctx, pod, container)
	})
}

// Evict terminates a pod, which then is Failed. See EvictPod.
func (o *Operator) Evict(ctx context.Context, namespace, name string, gracePeriod time.Duration) error {
	return o.named(namespace, name, func(pod *corev1.Pod) error { return o.EvictPod(ctx, pod, gracePeriod) })
}
