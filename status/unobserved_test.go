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

// startupProbed gives the first sidecar a startup probe.
func startupProbed(p *corev1.Pod) *corev1.Pod {
	p.Spec.InitContainers[0].StartupProbe = &corev1.Probe{}
	return p
}

// ST-2, ST-4: an init container that is gone from the runtime is completed once a
// regular one exists, whatever its previous status.
func TestGenerate_RemovedInitContainer(t *testing.T) {
	reported := func(p *corev1.Pod, c runtime.Container) corev1.PodStatus {
		return generate(p, runtime.Report{Observed: view(c)})
	}
	for _, policy := range []string{"policy=Always", "policy=OnFailure", "policy=Never"} {
		p := pod(policy, "init:i", "main:c")
		lost := generate(p, runtime.Report{Observed: view(unknown("i", 0))})
		for name, tc := range map[string]struct {
			previous corev1.PodStatus
			last     string // id of the end that is known
		}{
			"nothing was told":        {corev1.PodStatus{}, ""},
			"told as running":         {reported(p, running("i", 0)), ""},
			"told as unknown":         {lost, ""},
			"reported as failed once": {reported(pod("init:i", "main:c"), exited("i", 0, 1)), "containerd://i-0"},
		} {
			t.Run(policy+", "+name, func(t *testing.T) {
				runs := status.Generate(p, runtime.Report{Observed: view(running("c", 0))}, tc.previous, status.NodeInfo{}, testTime)
				assert.Equal(t, corev1.PodRunning, runs.Phase)
				i := runs.InitContainerStatuses[0]
				require.NotNil(t, i.State.Terminated)
				assert.Equal(t, "Completed", i.State.Terminated.Reason)
				assert.Zero(t, i.State.Terminated.ExitCode)
				assert.True(t, i.Ready)
				assert.Empty(t, i.ContainerID, "nobody knows which attempt it was")
				assert.Equal(t, corev1.ConditionTrue, conditionOf(&runs, corev1.PodInitialized).Status)
				if tc.last == "" {
					assert.Nil(t, i.LastTerminationState.Terminated)
				} else {
					assert.Equal(t, tc.last, i.LastTerminationState.Terminated.ContainerID, "an end that was told is not lost")
				}
				assert.Equal(t, runs, status.Generate(p, runtime.Report{Observed: view(running("c", 0))}, runs, status.NodeInfo{}, testTime), "told once, it stays")

				over := runtime.Report{Observed: view(exited("c", 0, 0)), Termination: &runtime.Termination{Deleted: true}, Finished: true}
				assert.Equal(t, corev1.PodSucceeded, status.Generate(p, over, runs, status.NodeInfo{}, testTime).Phase)
			})
		}
	}
}

// An inferred state gives way to an observed one, and never becomes a last termination state.
func TestGenerate_InitContainerThatWasInferred(t *testing.T) {
	p := pod("init:i", "main:c")
	inferred := generate(p, runtime.Report{Observed: view(running("c", 0))})
	st := status.Generate(p, runtime.Report{Observed: view(running("c", 0), exited("i", 2, 0))}, inferred, status.NodeInfo{}, testTime)
	assert.Equal(t, "i-2", st.InitContainerStatuses[0].State.Terminated.ContainerID)
	assert.Nil(t, st.InitContainerStatuses[0].LastTerminationState.Terminated)
	assert.Equal(t, int32(2), st.InitContainerStatuses[0].RestartCount)
}

// An init container that is to run again is not completed.
func TestGenerate_InitContainerThatIsToCome(t *testing.T) {
	old := running("c", 0)
	old.State, old.SandboxID = runtime.Exited, "s-old"
	for name, tc := range map[string]struct {
		pod      *corev1.Pod
		observed runtime.Pod
	}{
		"the sandbox is a new one":       {pod("init:i", "main:c"), view(old)},
		"all containers are restarted":   {restartsAll(pod("policy=Never", "init:i", "main:c"), "c"), view(exited("c", 0, 42))},
		"a sidecar always runs":          {pod("sidecar:i", "main:c"), view(running("c", 0))},
		"no regular one has been made":   {pod("init:i", "main:c"), view()},
		"nothing but a listing is known": {pod("init:i", "main:c"), listed(view(running("c", 0)))},
	} {
		t.Run(name, func(t *testing.T) {
			st := generate(tc.pod, runtime.Report{Observed: tc.observed})
			assert.NotNil(t, st.InitContainerStatuses[0].State.Waiting)
			assert.Equal(t, corev1.PodPending, st.Phase)
		})
	}
}

// listed is what a listing would tell of a pod.
func listed(p runtime.Pod) runtime.Pod {
	p.ObservedAt = time.Time{}
	return p
}

// ST-5: a pod whose containers are done runs while an ephemeral one does, whatever
// was reported before; one that was not initialized does not.
func TestGenerate_PhaseWhileOnlyOthersRun(t *testing.T) {
	for name, tc := range map[string]struct {
		pod      *corev1.Pod
		observed []runtime.Container
		previous corev1.PodPhase
		want     corev1.PodPhase
	}{
		"a debugger":                                 {pod("policy=Never", "main:c", "debug:d"), []runtime.Container{running("d", 0), exited("c", 0, 0)}, "", corev1.PodRunning},
		"a debugger, and Pending was told":           {pod("policy=Never", "main:c", "debug:d"), []runtime.Container{running("d", 0), exited("c", 0, 0)}, corev1.PodPending, corev1.PodRunning},
		"a sidecar of a pod whose init failed":       {pod("policy=Never", "sidecar:s", "init:i", "main:c"), []runtime.Container{exited("i", 0, 1), running("s", 0)}, "", corev1.PodPending},
		"a sidecar of one that ran in a former life": {pod("policy=Never", "sidecar:s", "init:i", "main:c"), []runtime.Container{exited("i", 1, 1), running("s", 1)}, corev1.PodRunning, corev1.PodRunning},
	} {
		t.Run(name, func(t *testing.T) {
			st := status.Generate(tc.pod, runtime.Report{Observed: view(tc.observed...)}, corev1.PodStatus{Phase: tc.previous}, status.NodeInfo{}, testTime)
			assert.Equal(t, tc.want, st.Phase)
		})
	}
}

// A container that was created and never ran has not succeeded, though the attempt
// before it did.
func TestGenerate_EndedWhileARestartIsPending(t *testing.T) {
	for name, tc := range map[string]struct {
		observed []runtime.Container
		want     corev1.PodPhase
	}{
		"created":     {[]runtime.Container{created("c", 1), exited("c", 0, 0)}, corev1.PodFailed},
		"not created": {[]runtime.Container{exited("c", 0, 0)}, corev1.PodSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			over := runtime.Report{Observed: view(tc.observed...), Termination: &runtime.Termination{Deleted: true}, Finished: true}
			st := status.Generate(pod("main:c"), over, corev1.PodStatus{Phase: corev1.PodRunning}, status.NodeInfo{}, testTime)
			assert.Equal(t, tc.want, st.Phase)
			assert.Equal(t, "c-0", st.ContainerStatuses[0].State.Terminated.ContainerID, "what ran is what is told")
			assert.Equal(t, "c-0", st.ContainerStatuses[0].ContainerID)
		})
	}
}
