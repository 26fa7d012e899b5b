//go:build linux

package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

// podKind is a pod and what its user would see of it.
type podKind struct {
	name string
	pod  func(n int) *corev1.Pod
	live func(context.Context, *livePod) error
}

// livePod is a pod that was created.
type livePod struct {
	c    *churn
	name string
}

// until waits until the status of the pod is as right says.
func (p *livePod) until(ctx context.Context, what string, right func(*corev1.Pod) bool) error {
	return poll(ctx, what, func() (string, error) {
		pod, err := p.c.client.CoreV1().Pods("default").Get(ctx, p.name, metav1.GetOptions{})
		if err != nil || right(pod) {
			return "", err
		}
		return describe(pod), nil
	})
}

// logs returns the log of the pod's container.
func (p *livePod) logs(ctx context.Context) (string, error) {
	text, err := p.c.client.CoreV1().Pods("default").GetLogs(p.name, &corev1.PodLogOptions{Container: "main"}).DoRaw(ctx)
	return string(text), err
}

// exec runs a command in the pod as kubectl exec does.
func (p *livePod) exec(ctx context.Context, stdin string, command ...string) (string, error) {
	req := p.c.client.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name(p.name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "main", Command: command, Stdin: true, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	e, err := remotecommand.NewWebSocketExecutor(p.c.config, "GET", req.URL().String())
	if err != nil {
		return "", err
	}
	var out, stderr bytes.Buffer
	err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: io.Reader(strings.NewReader(stdin)), Stdout: &out, Stderr: &stderr})
	if err != nil {
		return "", fmt.Errorf("exec %q: %w: %s", command, err, stderr.String())
	}
	return out.String(), nil
}

// shell returns a pod with one container that runs a line of a shell.
func shell(line string, policy corev1.RestartPolicy) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy: policy, TerminationGracePeriodSeconds: new(int64(5)),
		Containers: []corev1.Container{{Name: "main", Command: []string{"sh", "-c", line}}},
	}}
}

func isRunning(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Running != nil && p.Status.PodIP != ""
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// ended reports whether the container of the pod has ended in that way.
func ended(p *corev1.Pod, phase corev1.PodPhase, code int32, reason, message string) bool {
	if p.Status.Phase != phase || len(p.Status.ContainerStatuses) == 0 {
		return false
	}
	t := p.Status.ContainerStatuses[0].State.Terminated
	return t != nil && t.ExitCode == code && t.Reason == reason && t.Message == message && !t.FinishedAt.Before(&t.StartedAt)
}

// untilLive is the life of a pod that only has to reach a status.
func untilLive(what string, right func(*corev1.Pod) bool) func(context.Context, *livePod) error {
	return func(ctx context.Context, p *livePod) error { return p.until(ctx, what, right) }
}

// wants returns an error if a text is not the expected one.
func wants(what, want, got string, err error) error {
	if err == nil && got != want {
		err = fmt.Errorf("is %q, want %q", got, want)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// podKinds are the pods of the churn.
func podKinds() []podKind {
	return []podKind{
		{
			"a job that succeeds",
			func(int) *corev1.Pod { return shell("echo one; echo two; exit 0", corev1.RestartPolicyNever) },
			func(ctx context.Context, p *livePod) error {
				if err := p.until(ctx, "it succeeds", func(p *corev1.Pod) bool { return ended(p, corev1.PodSucceeded, 0, "Completed", "") }); err != nil {
					return err
				}
				log, err := p.logs(ctx)
				return wants("its log", "one\ntwo\n", log, err)
			},
		},
		{
			"a job that fails",
			func(int) *corev1.Pod {
				return shell("printf bye > /dev/termination-log; exit 7", corev1.RestartPolicyNever)
			},
			untilLive("it fails", func(p *corev1.Pod) bool { return ended(p, corev1.PodFailed, 7, "Error", "bye") }),
		},
		{
			"a job whose log is its message",
			func(int) *corev1.Pod {
				pod := shell("echo broken; exit 3", corev1.RestartPolicyNever)
				pod.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
				return pod
			},
			untilLive("it fails", func(p *corev1.Pod) bool { return ended(p, corev1.PodFailed, 3, "Error", "broken\n") }),
		},
		{
			"a service with exec and logs",
			func(int) *corev1.Pod {
				return shell("trap 'exit 0' TERM; echo up; sleep 3600 & wait", corev1.RestartPolicyAlways)
			},
			func(ctx context.Context, p *livePod) error {
				if err := p.until(ctx, "it runs", isRunning); err != nil {
					return err
				}
				out, err := p.exec(ctx, "hello", "cat")
				if err := wants("the output of cat", "hello", out, err); err != nil {
					return err
				}
				_, err = p.exec(ctx, "", "sh", "-c", "exit 4")
				if err == nil || !strings.Contains(err.Error(), "exit code 4") {
					return errors.Join(errors.New("the exit code of a command is lost"), err)
				}
				log, err := p.logs(ctx)
				return wants("its log", "up\n", log, err)
			},
		},
		{
			"a container that crashes",
			func(int) *corev1.Pod { return shell("echo attempt; exit 1", corev1.RestartPolicyAlways) },
			func(ctx context.Context, p *livePod) error {
				if err := p.until(ctx, "it is restarted and backs off", func(p *corev1.Pod) bool {
					if len(p.Status.ContainerStatuses) == 0 {
						return false
					}
					s := p.Status.ContainerStatuses[0]
					// A kubelet that backs off at once may not report the reason before the next attempt.
					backsOff := s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" || s.State.Terminated != nil && s.State.Terminated.ExitCode == 1
					return s.RestartCount >= 2 && backsOff &&
						s.LastTerminationState.Terminated != nil && s.LastTerminationState.Terminated.ExitCode == 1
				}); err != nil {
					return err
				}
				// The log of the last attempt, of which the kubelet may be about to start the next.
				return poll(ctx, "the log of an attempt", func() (string, error) {
					if log, err := p.logs(ctx); err != nil || log != "attempt\n" {
						return fmt.Sprintf("without its log: %q %v", log, err), nil
					}
					return "", nil
				})
			},
		},
		{
			"a container that ignores TERM",
			func(int) *corev1.Pod {
				pod := shell("trap '' TERM; while :; do sleep 1; done", corev1.RestartPolicyAlways)
				pod.Spec.TerminationGracePeriodSeconds = new(int64(2))
				return pod
			},
			untilLive("it runs", isRunning),
		},
		{
			"init containers in order",
			func(int) *corev1.Pod {
				pod := shell("test \"$(cat /order/text)\" = \"first second\" || exit 9; sleep 1; exit 0", corev1.RestartPolicyNever)
				volume := []corev1.VolumeMount{{Name: "order", MountPath: "/order"}}
				pod.Spec.Volumes = []corev1.Volume{{Name: "order", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
				pod.Spec.InitContainers = []corev1.Container{
					{Name: "first", Command: []string{"sh", "-c", "printf first > /order/text"}, VolumeMounts: volume},
					{Name: "side", Command: []string{"sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"}, RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
					{Name: "second", Command: []string{"sh", "-c", "printf ' second' >> /order/text"}, VolumeMounts: volume},
				}
				pod.Spec.Containers[0].VolumeMounts = volume
				return pod
			},
			untilLive("it succeeds", func(p *corev1.Pod) bool { return ended(p, corev1.PodSucceeded, 0, "Completed", "") }),
		},
		{
			"a container whose liveness fails",
			func(int) *corev1.Pod {
				pod := shell("trap 'exit 0' TERM; sleep 3600 & wait", corev1.RestartPolicyAlways)
				pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "echo ill; exit 1"}}},
					PeriodSeconds: 1, FailureThreshold: 2,
				}
				return pod
			},
			untilLive("it is restarted", func(p *corev1.Pod) bool {
				return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount >= 1
			}),
		},
		{
			"a web server with probes",
			webPod,
			func(ctx context.Context, p *livePod) error {
				if err := p.until(ctx, "it is ready", func(p *corev1.Pod) bool { return isRunning(p) && isReady(p) }); err != nil {
					return err
				}
				if _, err := p.exec(ctx, "", "rm", "/web/index.html"); err != nil {
					return err
				}
				return p.until(ctx, "it is not ready any more", func(p *corev1.Pod) bool { return isRunning(p) && !isReady(p) })
			},
		},
		{
			"hooks",
			func(int) *corev1.Pod {
				pod := shell("trap 'exit 0' TERM; sleep 3600 & wait", corev1.RestartPolicyAlways)
				pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
					PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "echo started > /tmp/hook-$HOSTNAME"}}},
					PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "rm /tmp/hook-$HOSTNAME"}}},
				}
				return pod
			},
			func(ctx context.Context, p *livePod) error {
				if err := p.until(ctx, "it runs", isRunning); err != nil {
					return err
				}
				out, err := p.exec(ctx, "", "cat", "/tmp/hook-"+p.name)
				return wants("what the hook has written", "started\n", out, err)
			},
		},
		{
			"environment and files",
			func(int) *corev1.Pod {
				pod := shell(`test "$COLOR" = blue && test "$(cat /settings/color)" = blue && test "$POD_NAME" = "$(hostname)" && test -s /etc/hosts && exit 0; exit 8`, corev1.RestartPolicyNever)
				pod.Spec.Volumes = []corev1.Volume{{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}}
				c := &pod.Spec.Containers[0]
				c.VolumeMounts = []corev1.VolumeMount{{Name: "settings", MountPath: "/settings", ReadOnly: true}}
				c.Env = []corev1.EnvVar{
					{Name: "COLOR", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Key: "color"}}},
					{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
				}
				c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("1Mi")}
				return pod
			},
			untilLive("it succeeds", func(p *corev1.Pod) bool { return ended(p, corev1.PodSucceeded, 0, "Completed", "") }),
		},
		{
			"a pod that is over its deadline",
			func(int) *corev1.Pod {
				pod := shell("trap 'exit 0' TERM; sleep 3600 & wait", corev1.RestartPolicyAlways)
				pod.Spec.ActiveDeadlineSeconds = new(int64(3))
				return pod
			},
			untilLive("it fails", func(p *corev1.Pod) bool {
				return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "DeadlineExceeded"
			}),
		},
		{
			"a pod that is deleted as it starts",
			func(int) *corev1.Pod {
				return shell("trap 'exit 0' TERM; sleep 3600 & wait", corev1.RestartPolicyAlways)
			},
			func(context.Context, *livePod) error { return nil },
		},
	}
}

// webPod serves a page at a port of its own: pods of host processes share their network.
func webPod(n int) *corev1.Pod {
	port := 20000 + n%10000
	pod := shell(fmt.Sprintf("echo well > /web/index.html; exec busybox httpd -f -p %d -h /web", port), corev1.RestartPolicyAlways)
	pod.Spec.Volumes = []corev1.Volume{{Name: "web", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = []corev1.VolumeMount{{Name: "web", MountPath: "/web"}}
	probe := func(handler corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: handler, PeriodSeconds: 1}
	}
	c.StartupProbe = probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}})
	c.StartupProbe.FailureThreshold = 60
	c.ReadinessProbe = probe(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/index.html", Port: intstr.FromInt(port)}})
	return pod
}
