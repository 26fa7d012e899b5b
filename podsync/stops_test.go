package podsync_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// failedProbes has failed for the containers of these ids.
type failedProbes struct {
	probes
	ids []string
}

func (p *failedProbes) Results(types.UID) runtime.PodProbeResults {
	results := runtime.PodProbeResults{}
	for _, id := range p.ids {
		results[id] = runtime.ProbeResults{Liveness: runtime.ProbeFailure}
	}
	return results
}

// stoppedPod is a pod whose container is stopped to be started once more.
type stoppedPod struct {
	t      *testing.T
	n      *fakeNode
	cfg    podsync.Config
	s      *podsync.Syncer
	probes *failedProbes
	pod    *corev1.Pod
}

func newStoppedPod(t *testing.T, policy corev1.RestartPolicy) *stoppedPod {
	n := &fakeNode{phase: corev1.PodRunning, applied: runtime.ApplyResult{Changed: true}}
	p := &stoppedPod{t: t, n: n, cfg: newConfig(t, n), probes: &failedProbes{probes: probes{n}}, pod: newTestPod()}
	p.pod.Spec.RestartPolicy = policy
	p.cfg.Probes = p.probes
	p.restart()
	return p
}

func (p *stoppedPod) restart() {
	p.probes.ids = nil
	p.s = newSyncer(p.t, p.cfg)
}

func (p *stoppedPod) file() string { return filepath.Join(p.cfg.PodsDir, string(p.pod.UID), "stops") }

// sync syncs the pod, whose container was changed, and returns the types of the planned actions.
func (p *stoppedPod) sync(change func(*runtime.Pod)) (planned []runtime.ActionType) {
	p.t.Helper()
	observed := podThatRuns(p.pod)
	change(&observed)
	p.n.plan = nil
	_, err := p.s.Sync(p.t.Context(), p.pod, observed)
	require.NoError(p.t, err)
	for _, a := range p.n.plan {
		planned = append(planned, a.Type)
	}
	return planned
}

func (p *stoppedPod) exits(code int32, at time.Time) func(*runtime.Pod) {
	return func(o *runtime.Pod) {
		c := &o.Containers[0]
		c.State, c.ExitCode, c.Started, c.Finished = runtime.Exited, code, at.Add(-time.Minute), at
	}
}

// PS-8: a container that was stopped to be started once more, and has exited with 0, has not completed, whether the start failed or
// was left to the next process.
func TestSync_StartsWhatItHasStopped(t *testing.T) {
	for name, stop := range map[string]func(p *stoppedPod, o *runtime.Pod){
		"probe":   func(p *stoppedPod, _ *runtime.Pod) { p.probes.ids = []string{"c"} },
		"spec":    func(_ *stoppedPod, o *runtime.Pod) { o.Containers[0].Hash = "s1-another" },
		"sandbox": func(_ *stoppedPod, o *runtime.Pod) { o.Sandboxes[0].IPs = nil },
		"resize": func(_ *stoppedPod, o *runtime.Pod) {
			o.Containers[0].Resources = &runtime.Resources{CPURequest: new(resource.MustParse("2m")), MemoryLimit: new(resource.MustParse("64Mi"))}
		},
	} {
		for _, restarted := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				p := newStoppedPod(t, corev1.RestartPolicyOnFailure)
				c := &p.pod.Spec.Containers[0]
				c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi")}
				c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
				require.Contains(t, p.sync(func(o *runtime.Pod) { stop(p, o) }), runtime.KillContainer)
				if restarted {
					p.restart()
				}
				exited := p.exits(0, time.Now().Add(time.Second))
				require.Contains(t, p.sync(exited), runtime.StartContainer)
				last := p.n.reports[len(p.n.reports)-1]
				assert.True(t, last.Probes["c"].IsUnhealthy(), "the status follows from it too")
			})
		}
	}
}

// A container that exits with 0 long after it should have been stopped has completed, as has one that was not stopped.
func TestSync_StartsNothingThatHasCompleted(t *testing.T) {
	completed := func(p *stoppedPod, at time.Time) {
		p.t.Helper()
		require.NotContains(p.t, p.sync(p.exits(0, at)), runtime.StartContainer)
	}
	p := newStoppedPod(t, corev1.RestartPolicyOnFailure)
	completed(p, time.Now())
	require.NoFileExists(t, p.file())

	for _, text := range []string{"", `{"other":"2026-12-01T00:00:00Z"}`, "[]"} {
		require.NoError(t, os.WriteFile(p.file(), []byte(text), 0o600))
		p.restart()
		completed(p, time.Now())
	}

	p.probes.ids = []string{"c"}
	require.Contains(t, p.sync(func(*runtime.Pod) {}), runtime.KillContainer)
	p.restart()
	completed(p, time.Now().Add(time.Hour))
}

// Under other policies nothing depends on why a container was stopped, and nothing is stored. Nor does it keep a pod from its
// sync that nothing can be.
func TestSync_RecordsStopsWhereTheyMatter(t *testing.T) {
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever} {
		p := newStoppedPod(t, policy)
		p.probes.ids = []string{"c"}
		require.Contains(t, p.sync(func(*runtime.Pod) {}), runtime.KillContainer)
		require.NoFileExists(t, p.file())
	}
	p := newStoppedPod(t, corev1.RestartPolicyOnFailure)
	p.probes.ids = []string{"c"}
	require.NoError(t, os.MkdirAll(p.file(), 0o700))
	require.Contains(t, p.sync(func(*runtime.Pod) {}), runtime.KillContainer)
	require.Contains(t, p.sync(p.exits(0, time.Now())), runtime.StartContainer)
}

// A container that waits for its start stays recorded when another one is stopped.
func TestSync_RecordsStopsOfSeveralContainers(t *testing.T) {
	p := newStoppedPod(t, corev1.RestartPolicyOnFailure)
	p.pod.Spec.Containers = append(p.pod.Spec.Containers, *p.pod.Spec.Containers[0].DeepCopy())
	p.pod.Spec.Containers[1].Name = "other"
	both := func(o *runtime.Pod) {
		o.Containers = slices.Concat(o.Containers, o.Containers)
		o.Containers[1].ID, o.Containers[1].Name, o.Containers[1].Hash = "d", "other", runtime.HashContainer(&p.pod.Spec.Containers[1])
	}
	p.probes.ids = []string{"c"}
	require.Contains(t, p.sync(both), runtime.KillContainer)
	p.probes.ids = []string{"d"}
	first := func(o *runtime.Pod) {
		both(o)
		p.exits(0, time.Now())(o)
	}
	require.Contains(t, p.sync(first), runtime.KillContainer)
	p.restart()
	started := p.sync(func(o *runtime.Pod) {
		first(o)
		c := &o.Containers[1]
		c.State, c.Finished = runtime.Exited, time.Now()
	})
	require.Equal(t, []runtime.ActionType{runtime.StartContainer, runtime.StartContainer}, started)
}
