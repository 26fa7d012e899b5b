//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func multiContainer(p *pod) {
	p.runs()
	p.saysSoon("author", "wget -qO- http://localhost:8080/", "written by the author")
	_, code, err := p.sh("web", "touch /pages/mine")
	require.NoError(p.t, err)
	require.NotZero(p.t, code, "the web server's view is read-only")
}

func initContainers(p *pod) {
	v := p.runs()
	p.saysSoon("app", "cat /job/steps", "fetch\nunpack\napp")
	require.Len(p.t, v.Status.InitContainerStatuses, 2)
	before := time.Time{}
	for _, c := range v.Status.InitContainerStatuses {
		require.NotNil(p.t, c.State.Terminated)
		require.Equal(p.t, "Completed", c.State.Terminated.Reason)
		require.False(p.t, c.State.Terminated.StartedAt.Time.Before(before), "one after the other")
		before = c.State.Terminated.FinishedAt.Time
	}
	p.eventually(func() error {
		if said := p.log("app", 0); said != "fetch\nunpack\napp\n" {
			return fmt.Errorf("the log says %q", said)
		}
		return nil
	})
}

// RT-6, RT-9
func sidecars(p *pod) {
	v := p.ends(corev1.PodSucceeded)
	want := "proxy is up\nshipper is up\nwork is done\nshipper ends\nproxy ends\n"
	require.Equal(p.t, want, p.shared("sidecars/log"))
	for _, c := range v.Status.InitContainerStatuses {
		require.Zero(p.t, c.RestartCount, c.Name)
	}
}

// RT-9, RT-10
func lifecycleHooks(p *pod) {
	p.runs()
	p.eventually(func() error {
		if got := p.shared("hooks/log"); got != "postStart of lifecycle-hooks-node\n" {
			return fmt.Errorf("the journal says %q", got)
		}
		return nil
	})
	began := time.Now()
	require.NoError(p.t, os.Remove(filepath.Join(p.manifests, p.file)))
	p.cleanedUp()
	require.Less(p.t, time.Since(began), 250*time.Second, "nobody waited for the whole grace period")
	require.Equal(p.t, "postStart of lifecycle-hooks-node\npreStop\nterm\n", p.shared("hooks/log"))
	at, err := strconv.ParseInt(strings.TrimSpace(p.shared("hooks/slow")), 10, 64)
	require.NoError(p.t, err)
	require.False(p.t, time.Unix(at, 0).Before(began.Add(2*time.Second)), "the hook's three seconds pass before the signal")
}

// cleanedUp waits until the runtime has nothing of the pod.
func (p *pod) cleanedUp() {
	p.t.Helper()
	p.eventually(func() error {
		r, err := p.rt.ListPodSandbox(p.t.Context(), &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.name": p.name + "-" + nodeName},
		}})
		if err != nil || len(r.GetItems()) > 0 {
			return fmt.Errorf("sandboxes %v: %w", r.GetItems(), err)
		}
		return nil
	})
}

// RT-14
func terminationMessage(p *pod) {
	v := p.ends(corev1.PodFailed)
	require.Equal(p.t, "Sleep expired\n", find(v, "default").State.Terminated.Message)
	elsewhere := find(v, "elsewhere").State.Terminated
	require.Equal(p.t, "kept at another path\n", elsewhere.Message)
	require.Equal(p.t, int32(3), elsewhere.ExitCode)
}

// RT-14
func terminationLogTail(p *pod) {
	v := p.ends(corev1.PodFailed)
	said := find(v, "fails").State.Terminated.Message
	require.Contains(p.t, said, "loading\n")
	require.Contains(p.t, said, "disk not found\n")
	require.Empty(p.t, find(v, "succeeds").State.Terminated.Message)
}

// SP-4
func commandAndArgs(p *pod) {
	p.ends(corev1.PodSucceeded)
	require.Equal(p.t, "hello world|$(MESSAGE)|$(UNKNOWN)|hello world twice|", strings.TrimSpace(p.log("main", 0)))
	require.Equal(p.t, "/made/by/the/runtime\n", p.log("where", 0))
}

func livenessExec(p *pod) { p.restarts("main") }
func livenessHTTP(p *pod) { p.restarts("main") }

// restarts waits until the container was started again.
func (p *pod) restarts(container string) {
	p.t.Helper()
	v := p.until(func(v *corev1.Pod) error {
		if c := find(v, container); c == nil || c.RestartCount < 1 || c.State.Running == nil {
			return fmt.Errorf("was not started again")
		}
		return nil
	})
	c := find(v, container)
	require.NotNil(p.t, c.LastTerminationState.Terminated)
	require.NotEqual(p.t, c.ContainerID, c.LastTerminationState.Terminated.ContainerID)
	require.NotZero(p.t, c.LastTerminationState.Terminated.ExitCode)
}

func readinessTCP(p *pod) {
	p.runs()
	ready := func(v *corev1.Pod) corev1.ConditionStatus {
		for _, c := range v.Status.Conditions {
			if c.Type == corev1.PodReady {
				return c.Status
			}
		}
		return corev1.ConditionUnknown
	}
	p.stays(2*time.Second, func() {
		v := p.runs()
		require.False(p.t, find(v, "main").Ready)
		require.Equal(p.t, corev1.ConditionFalse, ready(v))
	})
	require.NoError(p.t, os.WriteFile(filepath.Join(p.share, "readiness", "on"), nil, 0o600))
	v := p.until(func(v *corev1.Pod) error {
		if !find(v, "main").Ready || ready(v) != corev1.ConditionTrue {
			return fmt.Errorf("is not ready")
		}
		return nil
	})
	require.Zero(p.t, find(v, "main").RestartCount)
}

func startupProbe(p *pod) {
	v := p.until(func(v *corev1.Pod) error {
		if c := find(v, "main"); c == nil || c.Started == nil || !*c.Started || !c.Ready {
			return fmt.Errorf("has not started")
		}
		return nil
	})
	began := find(v, "main").State.Running.StartedAt.Time
	require.GreaterOrEqual(p.t, time.Since(began), 3*time.Second)
	p.stays(3*time.Second, func() { require.Zero(p.t, find(p.runs(), "main").RestartCount) })
}

// RT-4
func restartOnFailure(p *pod) {
	v := p.ends(corev1.PodSucceeded)
	require.Equal(p.t, int32(2), find(v, "main").RestartCount)
	require.Equal(p.t, "try 3\n", p.log("main", 2))
}

// RT-4
func restartRules(p *pod) {
	v := p.ends(corev1.PodFailed)
	c := find(v, "main")
	require.Equal(p.t, int32(2), c.RestartCount)
	require.Equal(p.t, int32(7), c.State.Terminated.ExitCode)
}

// RT-5
func initFails(p *pod) {
	v := p.ends(corev1.PodFailed)
	require.Equal(p.t, int32(9), find(v, "check").State.Terminated.ExitCode)
	require.Zero(p.t, find(v, "check").RestartCount)
	require.Empty(p.t, find(v, "app").ContainerID, "the app never was")
	r, err := p.rt.ListContainers(p.t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(v.UID), "io.kubernetes.container.name": "app"},
	}})
	require.NoError(p.t, err)
	require.Empty(p.t, r.GetContainers())
}

// PS-5
func activeDeadline(p *pod) {
	v := p.ends(corev1.PodFailed)
	require.Equal(p.t, "DeadlineExceeded", v.Status.Reason)
	require.NotNil(p.t, v.Status.StartTime)
	c := find(v, "main")
	require.NotNil(p.t, c.State.Terminated)
	require.NotZero(p.t, c.State.Terminated.ExitCode)
	// It would run for an hour. How soon after the deadline it ends is up to the machine.
	require.False(p.t, c.State.Terminated.FinishedAt.Time.Before(v.Status.StartTime.Add(9*time.Second)), "it ended before the deadline")
}

// IM-5
func pullSecret(p *pod) {
	v := p.runs()
	require.Regexp(p.t, regexp.MustCompile(`@sha256:[0-9a-f]{64}$`), find(v, "main").ImageID)
}

// IM-1, IM-5
func pullDenied(p *pod) {
	p.until(func(v *corev1.Pod) error {
		c := find(v, "main")
		if c == nil || c.State.Waiting == nil || (c.State.Waiting.Reason != "ErrImagePull" && c.State.Waiting.Reason != "ImagePullBackOff") {
			return fmt.Errorf("its image was not refused")
		}
		return nil
	})
	p.stays(time.Second, func() {
		p.until(func(v *corev1.Pod) error { return phaseIs(v, corev1.PodPending) })
	})
}

func phaseIs(v *corev1.Pod, want corev1.PodPhase) error {
	if v.Status.Phase != want {
		return fmt.Errorf("phase is not %s", want)
	}
	return nil
}

// IM-1
func imageNever(p *pod) {
	require.Contains(p.t, p.waits("main", "ErrImageNeverPull").Message, "registry.example/not-on-this-node:1")
}

func stdinAndTTY(p *pod) {
	p.runs()
	p.eventually(func() error {
		if said := strings.TrimSpace(p.log("terminal", 0)); !strings.HasPrefix(said, "/dev/") {
			return fmt.Errorf("the terminal is %q", said)
		}
		return nil
	})
	// Without an open input cat would have ended.
	p.stays(time.Second, func() { require.Zero(p.t, find(p.runs(), "input").RestartCount) })
}
