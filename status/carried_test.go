package status_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// container is the status of container c after what was seen before and what is
// seen now.
func container(p *corev1.Pod, before, now runtime.Pod) corev1.ContainerStatus {
	st := generateAfter(generate(p, runtime.Report{Observed: before}), p, runtime.Report{Observed: now})
	return st.ContainerStatuses[0]
}

// show writes a state and the one before it in a line.
func show(c *corev1.ContainerStatus) string {
	text := state(&c.State)
	if last := state(&c.LastTerminationState); last != "" {
		text += ", last " + last
	}
	return text
}

// ST-5: the status of a container that had one before.
func TestGenerate_StateAfterState(t *testing.T) {
	const lost0 = "ContainerStatusUnknown 137 (containerd://c-0)"
	const failed0, failed1 = "Error 3 (containerd://c-0)", "Error 7 (containerd://c-1)"
	waits := view()
	for _, tc := range []struct {
		name        string
		before, now runtime.Pod
		want        string
	}{
		{"it runs on", view(running("c", 0)), view(running("c", 0)), "running"},
		{"it ended", view(running("c", 0)), view(exited("c", 0, 3)), failed0},
		{"it was restarted", view(exited("c", 0, 3)), view(running("c", 1), exited("c", 0, 3)), "running, last " + failed0},
		{"and the end is collected", view(exited("c", 0, 3)), view(running("c", 1)), "running, last " + failed0},
		{"restarted, and nobody saw the end", view(running("c", 0)), view(running("c", 1)), "running, last " + lost0},
		{"restarted, and the runtime has the end that nobody saw", view(running("c", 0)), view(running("c", 1), exited("c", 0, 3)), "running, last " + failed0},
		{"restarted, and the one before does not end", view(running("c", 0)), view(running("c", 1), unknown("c", 0)), "running, last " + lost0},
		{"the runtime has lost track of it", view(running("c", 0)), view(unknown("c", 0)), lost0},
		{"the runtime never knew its state", waits, view(unknown("c", 0)), "waiting ContainerCreating"},
		{"it is gone", view(running("c", 0)), waits, lost0},
		{"it had ended and is gone", view(exited("c", 0, 3)), waits, failed0},
		{"ended, and the next is created", view(exited("c", 0, 3)), view(created("c", 1), exited("c", 0, 3)), "waiting ContainerCreating, last " + failed0},
		{"the next is created, and the end is collected", view(created("c", 1), exited("c", 0, 3)), view(created("c", 1)), "waiting ContainerCreating, last " + failed0},
		{"the one created is gone", view(created("c", 1), exited("c", 0, 3)), waits, "waiting ContainerCreating, last " + failed0},
		{"an end is told once, whatever the runtime says later", view(exited("c", 0, 3)), view(exited("c", 0, 9)), failed0},
		{"it ended and the runtime loses track of it", view(exited("c", 0, 3)), view(unknown("c", 0)), failed0},
		{"it ended, so was told, and runs", view(exited("c", 0, 3)), view(running("c", 0)), "running"},
		{"a listing says nothing of its state", view(exited("c", 0, 3)), listed(view(exited("c", 0, 0))), failed0},
		{"a listing of what is new does", view(exited("c", 0, 3)), listed(view(running("c", 1))), "running, last " + failed0},
		{"a listing without it", view(running("c", 0)), listed(view()), "running"},
		{"the last end stays while it runs", view(running("c", 1), exited("c", 0, 3)), view(running("c", 1)), "running, last " + failed0},
		{"and when it ends", view(running("c", 1), exited("c", 0, 3)), view(exited("c", 1, 7)), failed1 + ", last " + failed0},
		{"the runtime has another exit code of the one before", view(exited("c", 0, 3)), view(running("c", 1), exited("c", 0, 9)), "running, last " + failed0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := container(pod("main:c"), tc.before, tc.now)
			assert.Equal(t, tc.want, show(&c))
		})
	}
}

// ST-5: a termination that was reported as lost gives way to the one that the runtime reports
// after all.
func TestGenerate_LostAndFound(t *testing.T) {
	p := pod("main:c")
	lost := generateAfter(generate(p, runtime.Report{Observed: view(running("c", 0))}), p, runtime.Report{Observed: view(unknown("c", 0))})
	for want, c := range map[string]runtime.Container{
		"Error 3 (containerd://c-0)": exited("c", 0, 3), "running": running("c", 0),
		"ContainerStatusUnknown 137 (containerd://c-0)": unknown("c", 0),
	} {
		st := generateAfter(lost, p, runtime.Report{Observed: view(c)})
		assert.Equal(t, want, show(&st.ContainerStatuses[0]))
	}
	// While it was lost it waited to be restarted; then it turned up.
	waited := generateAfter(lost, p, runtime.Report{
		Observed: view(unknown("c", 0)), Failures: map[string]runtime.Failure{"c": {Reason: "CrashLoopBackOff"}},
	})
	require.Equal(t, "waiting CrashLoopBackOff, last ContainerStatusUnknown 137 (containerd://c-0)", show(&waited.ContainerStatuses[0]))
	found := generateAfter(waited, p, runtime.Report{Observed: view(running("c", 0))})
	assert.Equal(t, "running", show(&found.ContainerStatuses[0]))
}

// ST-5: a termination that was reported while the container waited to be restarted.
func TestGenerate_StateAfterAWait(t *testing.T) {
	p := pod("main:c")
	waited := generate(p, runtime.Report{Observed: view(exited("c", 0, 3)), Failures: map[string]runtime.Failure{"c": {Reason: "CrashLoopBackOff"}}})
	for _, tc := range []struct {
		name string
		now  runtime.Container
		want string
	}{
		{"it is there still", exited("c", 0, 3), "Error 3 (containerd://c-0)"},
		{"the runtime loses track of it", unknown("c", 0), "Error 3 (containerd://c-0)"},
		{"it runs, started by another client", running("c", 0), "running, last Error 3 (containerd://c-0)"},
		{"the next one runs", running("c", 1), "running, last Error 3 (containerd://c-0)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := generateAfter(waited, p, runtime.Report{Observed: view(tc.now)})
			assert.Equal(t, tc.want, show(&st.ContainerStatuses[0]))
		})
	}
}

// ST-4: a pod that is over waits for nothing.
func TestGenerate_WaitsOfAPodThatIsOver(t *testing.T) {
	over := runtime.Report{Termination: &runtime.Termination{Deleted: true}, Finished: true}
	fails := map[string]runtime.Failure{"i": {Reason: "ErrImagePull"}, "s": {Reason: "CrashLoopBackOff"}}

	over.Observed, over.Failures = view(), fails
	st := generate(pod("init:i", "main:c"), over)
	assert.Equal(t, "ContainerStatusUnknown 137 ()", show(&st.InitContainerStatuses[0]), "nor for an image")
	over.Observed = view(exited("c", 0, 0))
	st = generate(pod("main:c", "debug:d"), over)
	assert.Equal(t, "waiting ContainerCreating", show(&st.EphemeralContainerStatuses[0]), "a debugger is not missed")

	// It is over by itself: what a sidecar waited for does not come.
	st = generate(pod("policy=Never", "sidecar:s", "main:c"), runtime.Report{Observed: view(exited("c", 0, 0), exited("s", 0, 1)), Failures: fails})
	require.Equal(t, corev1.PodSucceeded, st.Phase)
	assert.Equal(t, "Error 1 (containerd://s-0)", show(&st.InitContainerStatuses[0]))

	// It ends, and one runs still: another that never ran may not be lost yet.
	st = generate(pod("main:c", "main:d"), runtime.Report{Observed: view(running("c", 0)), Termination: &runtime.Termination{Deleted: true}})
	assert.Equal(t, "waiting ContainerCreating", show(&st.ContainerStatuses[1]))
}

// A listing has no exit codes, so it cannot distinguish a restart of all containers
// from an end.
func TestGenerate_ListingOfAPodWithARuleForAll(t *testing.T) {
	ends := func(p *corev1.Pod) corev1.PodStatus {
		st := generate(p, runtime.Report{Observed: view(running("d", 0), exited("c", 0, 42))})
		st.ContainerStatuses[1].State = st.ContainerStatuses[0].State
		st.Phase = corev1.PodRunning
		return st
	}
	observed := listed(view(exited("d", 0, 0), exited("c", 0, 0)))
	ruled := restartsAll(pod("policy=Never", "main:c", "main:d"), "c")
	assert.Equal(t, corev1.PodRunning, generateAfter(ends(ruled), ruled, runtime.Report{Observed: observed}).Phase)
	plain := pod("policy=Never", "main:c", "main:d")
	assert.Equal(t, corev1.PodFailed, generateAfter(ends(plain), plain, runtime.Report{Observed: observed}).Phase)
}

// ST-5: counts do not fall where the runtime has lost them.
func TestGenerate_RestartCount(t *testing.T) {
	for _, now := range []runtime.Pod{view(running("c", 0)), view(), view(created("c", 2))} {
		assert.Equal(t, int32(5), container(pod("main:c"), view(running("c", 5)), now).RestartCount)
	}
	assert.Equal(t, int32(6), container(pod("main:c"), view(running("c", 5)), view(running("c", 6))).RestartCount)
}

// What the runtime reports of a container once is kept as long as it is the same.
func TestGenerate_UserAndStopSignal(t *testing.T) {
	user := func(uid int64, signal corev1.Signal) runtime.Container {
		c := running("c", 0)
		c.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: uid}}
		c.StopSignal = signal
		return c
	}
	for _, tc := range []struct {
		name string
		now  runtime.Pod
		uid  int64 // -1: none
		sig  corev1.Signal
	}{
		{"not told again", view(running("c", 0)), 7, corev1.SIGUSR1},
		{"told otherwise", view(user(8, corev1.SIGUSR2)), 8, corev1.SIGUSR2},
		{"gone", view(), 7, corev1.SIGUSR1},
		{"another one", view(running("c", 1)), -1, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := container(pod("main:c"), view(user(7, corev1.SIGUSR1)), tc.now)
			if tc.uid < 0 {
				assert.Nil(t, c.User)
				assert.Nil(t, c.StopSignal)
				return
			}
			assert.Equal(t, tc.uid, c.User.Linux.UID)
			assert.Equal(t, tc.sig, *c.StopSignal)
		})
	}
}

func TestGenerate_Image(t *testing.T) {
	image := func(c runtime.Container, image string) runtime.Container { c.Image = image; return c }
	p := pod("main:c")
	assert.Equal(t, "img-c", container(p, view(), view(image(running("c", 0), ""))).Image, "the spec's, where the runtime does not name it")
	named := view(image(running("c", 0), "registry/img-c:1"))
	assert.Equal(t, "registry/img-c:1", container(p, view(), named).Image)
	assert.Equal(t, "registry/img-c:1", container(p, named, view()).Image, "what it ran with")
	deleted := container(p, view(image(created("c", 1), "registry/img-c:2"), exited("c", 0, 3)), view())
	assert.Equal(t, "img-c", deleted.Image, "one that never ran has none but the spec's")
	assert.Empty(t, deleted.ImageID)
	assert.Empty(t, container(p, view(created("c", 0)), view()).ContainerID, "nor an id")

	// A status of another's making may lack the image.
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3}}
	bare := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: ended}}}
	assert.Equal(t, "img-c", generateAfter(bare, p, runtime.Report{Observed: view()}).ContainerStatuses[0].Image)

	// A listing does not know what an image was resolved to.
	unresolved := listed(view(running("c", 0)))
	unresolved.Containers[0].ImageID = ""
	assert.Equal(t, "sha256:c", container(p, view(running("c", 0)), unresolved).ImageID)
}

// ST-4: the failure of a container is reported only if it should run.
func TestGenerate_Failures(t *testing.T) {
	crash := map[string]runtime.Failure{}
	for _, name := range []string{"c", "d", "i"} {
		crash[name] = runtime.Failure{Reason: "CrashLoopBackOff", Message: "back-off 10s"}
	}
	all := restartsAll(pod("policy=Never", "main:c", "main:e"), "e")
	for _, tc := range []struct {
		name     string
		pod      *corev1.Pod
		observed runtime.Pod
		fail     map[string]runtime.Failure
		want     string
	}{
		{"never made", pod("main:c"), view(), crash, "waiting CrashLoopBackOff"},
		{"ended", pod("main:c"), view(exited("c", 0, 3)), crash, "waiting CrashLoopBackOff, last Error 3 (containerd://c-0)"},
		{"runs", pod("main:c"), view(running("c", 0)), crash, "running"},
		{"done", pod("policy=OnFailure", "main:c", "main:x"), view(running("x", 0), exited("c", 0, 0)), crash, "Completed 0 (containerd://c-0)"},
		{"failed for good", pod("policy=Never", "main:c", "main:x"), view(running("x", 0), exited("c", 0, 3)), crash, "Error 3 (containerd://c-0)"},
		{"ended for a restart of all", all, view(exited("c", 0, 143), exited("e", 0, 42)), crash, "waiting CrashLoopBackOff, last Error 143 (containerd://c-0)"},
		{"without a reason", pod("main:c"), view(exited("c", 0, 3)), map[string]runtime.Failure{"c": {Message: "?"}}, "Error 3 (containerd://c-0)"},
		{"init is done", pod("init:i", "main:c"), view(exited("i", 0, 0)), crash, "Completed 0 (containerd://i-0)"},
		{"a debugger has ended", pod("main:x", "debug:d"), view(running("x", 0), exited("d", 0, 3)), crash, "Error 3 (containerd://d-0)"},
		{"a debugger was never made", pod("main:x", "debug:d"), view(running("x", 0)), crash, "waiting CrashLoopBackOff"},
		{"a debugger waits for nobody's init", pod("init:x", "main:y", "debug:d"), view(running("x", 0)), nil, "waiting ContainerCreating"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := generate(tc.pod, runtime.Report{Observed: tc.observed, Failures: tc.fail})
			first := st.ContainerStatuses
			if len(st.EphemeralContainerStatuses) > 0 {
				first = st.EphemeralContainerStatuses
			} else if len(st.InitContainerStatuses) > 0 {
				first = st.InitContainerStatuses
			}
			assert.Equal(t, tc.want, show(&first[0]))
		})
	}
	over := generate(pod("main:c"), runtime.Report{Observed: view(exited("c", 0, 3)), Failures: crash, Termination: &runtime.Termination{Deleted: true}})
	assert.Equal(t, "Error 3 (containerd://c-0)", show(&over.ContainerStatuses[0]), "nothing is waited for any more")
}

// A container of a pod that is held back waits for that, unless it has an end.
func TestGenerate_BlockedContainers(t *testing.T) {
	blocked := &runtime.Failure{Reason: "AppArmor", Message: "profile is not loaded"}
	st := generate(pod("main:c", "main:d", "main:e"), runtime.Report{Observed: view(exited("d", 0, 3), running("e", 0)), Blocked: blocked})
	var got []string
	for i := range st.ContainerStatuses {
		got = append(got, show(&st.ContainerStatuses[i]))
	}
	assert.Equal(t, []string{"waiting Blocked", "Error 3 (containerd://d-0)", "running"}, got)
}

// A restarted agent keeps the reported readiness of the same container.
func TestGenerate_ReadinessFromPreviousStatus(t *testing.T) {
	p := pod("main:c")
	p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[0].StartupProbe = &corev1.Probe{}, &corev1.Probe{}
	healthy := runtime.Report{Observed: view(running("c", 0)), Probes: runtime.PodProbeResults{"c-0": {Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess}}}
	starting := runtime.Report{Observed: view(running("c", 0))}
	for _, tc := range []struct {
		name           string
		before, now    runtime.Report
		started, ready bool
	}{
		{"the same one", healthy, starting, true, true},
		{"the same one, which was starting", starting, starting, false, false},
		{"another one", healthy, runtime.Report{Observed: view(running("c", 1))}, false, false},
		{"none", healthy, runtime.Report{Observed: view()}, false, false},
		{
			"another one, which has started", healthy,
			runtime.Report{Observed: view(running("c", 1)), Probes: runtime.PodProbeResults{"c-1": {Startup: runtime.ProbeSuccess}}},
			true, false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := generateAfter(generate(p, tc.before), p, tc.now).ContainerStatuses[0]
			assert.Equal(t, tc.started, *c.Started)
			assert.Equal(t, tc.ready, c.Ready)
		})
	}
	// What another wrote may lack it.
	bare := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://c-0"}}}
	assert.False(t, *generateAfter(bare, p, starting).ContainerStatuses[0].Started)
}

// Without node addresses, the reported ones are kept.
func TestGenerate_HostIPs(t *testing.T) {
	p := pod("main:c")
	previous := generate(p, runtime.Report{Observed: view()})
	st := status.Generate(p, runtime.Report{Observed: view()}, previous, status.NodeInfo{}, testTime)
	assert.Equal(t, previous.HostIPs, st.HostIPs)
	assert.Equal(t, "192.0.2.1", st.HostIP)

	onHost := view()
	onHost.Sandboxes[0].HostNetwork, onHost.Sandboxes[0].IPs = true, []string{"10.9.9.9"}
	assert.Equal(t, "192.0.2.1", generate(p, runtime.Report{Observed: onHost}).PodIP, "the sandbox is made like that, though the spec changed")
}

// A time that is not known is left out.
func TestGenerate_UnknownTimes(t *testing.T) {
	c := exited("c", 0, 3)
	c.Started = time.Time{}
	end := container(pod("main:c"), view(), view(c)).State.Terminated
	assert.True(t, end.StartedAt.IsZero())
	assert.Equal(t, testTime.Add(30*time.Second), end.FinishedAt.Time)
}
