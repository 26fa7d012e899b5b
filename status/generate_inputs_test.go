package status_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// A status that a Manager does not generate again equals the one it would have generated: whatever
// follows on what, over and over, its statuses are those of Generate.
func TestManager_ReusesStatusOfEqualInputs(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			envs := []status.NodeInfo{{RuntimeName: "sim"}, {RuntimeName: "sim", HostIPs: []string{"10.0.0.1"}}}
			env := 0
			m, err := status.New(status.Config{NodeInfo: func() status.NodeInfo { return envs[env] }})
			require.NoError(t, err)
			pods := []*corev1.Pod{settledPod("app:1"), settledPod("app:1"), settledPod("app:2")}
			views := []runtime.Pod{settledView(runtime.Running), settledView(runtime.Running), settledView(runtime.Exited), {UID: "u"}}
			var previous corev1.PodStatus
			pod, view, ready := 0, 0, runtime.ProbeSuccess
			for step := range 60 {
				switch rnd.IntN(8) {
				case 0:
					pod = rnd.IntN(len(pods))
				case 1:
					view = rnd.IntN(len(views))
				case 2:
					ready = []runtime.ProbeResult{runtime.ProbeSuccess, runtime.ProbeFailure}[rnd.IntN(2)]
				case 3:
					env = rnd.IntN(len(envs))
				case 4:
					time.Sleep(time.Second)
				}
				r := runtime.Report{Observed: views[view], Probes: runtime.PodProbeResults{"c": {Startup: runtime.ProbeSuccess, Readiness: ready, Liveness: runtime.ProbeSuccess}}}
				switch rnd.IntN(12) {
				case 0:
					r.Failures = map[string]runtime.Failure{"app": {Reason: "CrashLoopBackOff", Message: "later"}}
				case 1:
					r.Blocked = &runtime.Failure{Reason: "Blocked", Message: "not now"}
				}
				want := status.Generate(pods[pod], r, previous, envs[env], time.Now())
				got := m.Observe(pods[pod], r)
				require.True(t, equality.Semantic.DeepEqual(want, got), "seed %d step %d: want %v, got %v", seed, step, want, got)
				kept, ok := m.Get("u")
				require.True(t, ok)
				require.True(t, equality.Semantic.DeepEqual(want, kept))
				previous = want
			}
		})
	}
}

func settledPod(image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "u", Name: "p", Namespace: "ns"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways,
			Containers:    []corev1.Container{{Name: "app", Image: image, ReadinessProbe: &corev1.Probe{}}},
		},
	}
}

func settledView(st runtime.ContainerState) runtime.Pod {
	return runtime.Pod{
		UID: "u", Namespace: "ns", Name: "p", ObservedAt: time.Now(),
		Sandboxes:  []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, IPs: []string{"10.1.0.1"}}},
		Containers: []runtime.Container{{ID: "c", Name: "app", SandboxID: "s", State: st, Started: time.Now(), Finished: time.Now()}},
	}
}

// BenchmarkObserveUnchanged is what a turn of a pod costs to which nothing happens.
func BenchmarkObserveUnchanged(b *testing.B) {
	m, err := status.New(status.Config{})
	require.NoError(b, err)
	pod, r := settledPod("app:1"), runtime.Report{Observed: settledView(runtime.Running), Probes: runtime.PodProbeResults{"c": {Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess}}}
	b.ReportAllocs()
	for b.Loop() {
		m.Observe(pod, r)
	}
}
