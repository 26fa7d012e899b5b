package podsync

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// RT-8: a plan that is not made again is the one that would have been made: whatever follows on
// what, and however much time passes in between.
func TestSyncer_PlansWhatHasChanged(t *testing.T) {
	skipped := 0 // plans
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			var s Syncer
			pods := []*corev1.Pod{plannedPod("app:1", corev1.RestartPolicyAlways), plannedPod("app:1", corev1.RestartPolicyAlways), plannedPod("app:2", corev1.RestartPolicyNever)}
			var views []runtime.Pod
			for _, pod := range pods[1:] {
				views = append(views, plannedView(pod, runtime.Running), plannedView(pod, runtime.Exited), runtime.Pod{UID: "u", ObservedAt: time.Now()})
			}
			views = append(views, runtime.Pod{UID: "u", Sandboxes: views[0].Sandboxes, Containers: views[0].Containers}) // a listing
			st, ends := new(podState), new(podState)
			pod, view, alive := 0, 0, runtime.ProbeSuccess
			for step := range 60 {
				switch rnd.IntN(6) {
				case 0:
					pod = rnd.IntN(len(pods))
				case 1:
					view = rnd.IntN(len(views))
				case 2:
					alive = []runtime.ProbeResult{runtime.ProbeSuccess, runtime.ProbeFailure}[rnd.IntN(2)]
				case 3:
					time.Sleep(time.Duration(rnd.IntN(400)) * time.Second)
				}
				probes := runtime.PodProbeResults{"c": {Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess, Liveness: alive}}
				now := time.Now()
				want := runtime.Plan(pods[pod], runtime.PlanInput{Pod: ends.withEnds(views[view], now), Probes: probes}, now)
				if st.settled.Equal(pods[pod], &views[view], probes) {
					skipped++
				}
				got := s.plan(t.Context(), pods[pod], views[view], st, runtime.Report{Probes: probes}, corev1.PodStatus{})
				require.Equal(t, want, got, "seed %d step %d", seed, step)
			}
		})
	}
	require.Greater(t, skipped, 1000)
}

// What Injectors give a container may change at any time.
func TestSyncer_PlansWithInjectors(t *testing.T) {
	given := runtime.Injection{}
	s := &Syncer{cfg: Config{Injectors: []Injector{injectorFunc(func() runtime.Injection { return given })}, Logger: slog.New(slog.DiscardHandler)}}
	pod := plannedPod("app:1", corev1.RestartPolicyAlways)
	view, st := plannedView(pod, runtime.Running), new(podState)
	require.Empty(t, s.plan(t.Context(), pod, view, st, runtime.Report{}, corev1.PodStatus{}))
	given.Env = map[string]string{"NEW": "1"}
	require.NotEmpty(t, s.plan(t.Context(), pod, view, st, runtime.Report{}, corev1.PodStatus{}))
}

type injectorFunc func() runtime.Injection

func (f injectorFunc) Inject(context.Context, *corev1.Pod, *corev1.Container, bool) (runtime.Injection, error) {
	return f(), nil
}

func plannedPod(image string, restart corev1.RestartPolicy) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: restart, Containers: []corev1.Container{{Name: "app", Image: image, LivenessProbe: &corev1.Probe{}}}}}
	pod.UID, pod.Namespace, pod.Name = "u", "ns", "p"
	return pod
}

func plannedView(pod *corev1.Pod, state runtime.ContainerState) runtime.Pod {
	now := time.Now()
	return runtime.Pod{
		UID: "u", Namespace: "ns", Name: "p", ObservedAt: now,
		Sandboxes: []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, IPs: []string{"10.1.0.1"}}},
		Containers: []runtime.Container{{
			ID: "c", Name: "app", SandboxID: "s", State: state, Started: now.Add(-time.Second), Finished: now, ExitCode: 1,
			Hash: runtime.HashContainer(&pod.Spec.Containers[0]),
		}},
	}
}
