package agent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/status"
)

var _ eviction.ImageReclaimer = (*imagegc.Collector)(nil)

// inside runs an agent on a simulated runtime until f is done.
func inside(t *testing.T, f func(t *testing.T, rt *embedded.Runtime, client *cri.Client, start func(...agent.Option) *agent.Agent)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
		require.NoError(t, err)
		cc, err := rt.Dial()
		require.NoError(t, err)
		client, err := cri.New(cc, cri.Config{Owner: "node"})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		var agents []chan error
		defer func() {
			cancel()
			for _, done := range agents {
				assert.NoError(t, <-done)
			}
			assert.NoError(t, cc.Close())
			assert.NoError(t, rt.Close())
		}()
		f(t, rt, client, func(opts ...agent.Option) *agent.Agent {
			a, err := agent.New(append([]agent.Option{
				agent.WithNodeName("node"), agent.WithRuntime(client), agent.WithRootDir(t.TempDir()), agent.WithNode(node.Config{DisableCgroups: true}),
			}, opts...)...)
			require.NoError(t, err)
			done := make(chan error, 1)
			agents = append(agents, done)
			go func() { done <- a.Run(ctx) }()
			return a
		})
	})
}

// EV-5, EV-6: a deleted pod with an hour to end is ended at once under memory pressure if it uses
// the most, and its last status says so. No other pod is evicted.
func TestAgent_ShortensDeletionUnderMemoryPressure(t *testing.T) {
	inside(t, func(t *testing.T, _ *embedded.Runtime, client *cri.Client, start func(...agent.Option) *agent.Agent) {
		var statuses agenttest.Statuses
		greedy := agenttest.SizedPod("greedy", "1Mi", "0s=50Mi,10m=700Mi")
		greedy.Annotations["sim.sublet.dev/ignore-term"] = "true"
		pods := podsource.NewMemory(agenttest.SizedPod("calm", "1Mi", "0s=250Mi"), greedy)
		start(
			agent.WithSource("cloud", podsource.NotStatic(pods)), agent.WithStatusSink(&statuses),
			agent.WithConfig(eviction.Config{Thresholds: hardThresholds("memory.available<100Mi"), Usage: &agenttest.Node{Client: client}}),
		)
		time.Sleep(time.Minute)
		deleted := greedy.DeepCopy()
		deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now().Add(time.Hour)}, new(int64(3600))
		pods.Put(deleted)
		time.Sleep(8 * time.Minute)
		require.Equal(t, corev1.PodRunning, statuses.Of("greedy").Phase, "it ignores the signal")
		time.Sleep(3 * time.Minute)
		st := statuses.Of("greedy")
		require.Equal(t, corev1.PodFailed, st.Phase)
		require.Equal(t, eviction.Reason, st.Reason)
		require.Contains(t, st.Message, "low on resource: memory")
		require.True(t, hasCondition(st, corev1.DisruptionTarget))
		require.Equal(t, corev1.PodRunning, statuses.Of("calm").Phase)
	})
}

// EV-5, EV-6, EV-8, EV-9: under memory pressure the pod above its request is evicted with
// all its resources, and no other. A new pod without a request is rejected while the
// node reports the pressure.
func TestAgent_EvictsUnderMemoryPressure(t *testing.T) {
	inside(t, func(t *testing.T, _ *embedded.Runtime, client *cri.Client, start func(...agent.Option) *agent.Agent) {
		var statuses agenttest.Statuses
		var mu sync.Mutex
		var order []string // guarded by mu
		pods := podsource.NewMemory(agenttest.SizedPod("calm", "300Mi", "0s=250Mi"), agenttest.SizedPod("greedy", "100Mi", "0s=50Mi,10m=700Mi"))
		a := start(
			agent.WithSource("cloud", podsource.NotStatic(pods)), agent.WithStatusSink(&statuses), // static pods are critical
			agent.WithConfig(eviction.Config{Thresholds: hardThresholds("memory.available<100Mi"), Usage: &agenttest.Node{Client: client}}),
			agent.WithHooks(agent.Hooks{Eviction: eviction.Hooks{Evicted: func(_ eviction.Signal, pod *corev1.Pod, _ time.Duration, err error) {
				require.NoError(t, err)
				left, err := client.Pods(t.Context())
				require.NoError(t, err)
				for _, p := range left {
					assert.False(t, p.Name == "greedy" && p.CouldHaveRunningContainers(), "it is reported as evicted only when it has stopped")
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, pod.Name)
			}}}),
		)
		time.Sleep(time.Minute)
		require.Equal(t, corev1.PodRunning, statuses.Of("greedy").Phase)
		require.Equal(t, corev1.ConditionFalse, a.Conditions()[0].Status)

		time.Sleep(11 * time.Minute)
		mu.Lock()
		require.Equal(t, []string{"greedy"}, order)
		mu.Unlock()
		st := statuses.Of("greedy")
		require.Equal(t, corev1.PodFailed, st.Phase)
		require.Equal(t, eviction.Reason, st.Reason)
		require.Contains(t, st.Message, "low on resource: memory")
		require.True(t, hasCondition(st, corev1.DisruptionTarget))
		require.Equal(t, corev1.PodRunning, statuses.Of("calm").Phase)
		require.Equal(t, corev1.ConditionTrue, a.Conditions()[0].Status, "the condition holds for the transition period")

		best := agenttest.SizedPod("best", "1Mi", "0s=1Mi")
		best.Spec.Containers[0].Resources, best.Status = corev1.ResourceRequirements{}, corev1.PodStatus{}
		pods.Put(best)
		time.Sleep(time.Second)
		require.Equal(t, eviction.Reason, statuses.Of("best").Reason, statuses.Of("best"))
		time.Sleep(10 * time.Minute)
		require.Equal(t, corev1.ConditionFalse, a.Conditions()[0].Status)
		require.NoError(t, a.Healthy())
	})
}

func hasCondition(st corev1.PodStatus, kind corev1.PodConditionType) bool {
	for _, c := range st.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// EV-4: when disk is short, images and dead containers go first, and no pod does
// if that helps.
func TestDiskIsReclaimedBeforePodsGo(t *testing.T) {
	inside(t, func(t *testing.T, _ *embedded.Runtime, client *cri.Client, start func(...agent.Option) *agent.Agent) {
		var statuses agenttest.Statuses
		node := &agenttest.Node{Client: client}
		var evicted []string
		var reclaimed atomic.Int32
		// An image that is there for a container that cannot be made yet.
		waits := agenttest.SizedPod("waits", "10Mi", "0s=1Mi")
		waits.Annotations["sim.sublet.dev/create-error"] = "not now"
		pods := podsource.NewMemory(agenttest.SizedPod("web", "10Mi", "0s=1Mi"), waits)
		a := start(
			agent.WithSource("memory", pods), agent.WithStatusSink(&statuses),
			agent.WithConfig(imagegc.Config{Policy: imagegc.Policy{HighThresholdPercent: 100, MinAge: -1}}),
			agent.WithConfig(eviction.Config{Thresholds: hardThresholds("imagefs.available<15%"), Usage: node}),
			agent.WithHooks(agent.Hooks{
				ImageGC: imagegc.Hooks{Removed: func(i runtime.Image, _ imagegc.Reason, _ time.Duration, err error) {
					assert.NoError(t, err)
					reclaimed.Add(1)
					node.SetDiskUsed(0.1)
				}},
				Eviction: eviction.Hooks{Evicting: func(_ eviction.Signal, ranked []eviction.Candidate, _ runtime.Termination) {
					evicted = append(evicted, ranked[0].Pod.Name)
				}},
			}),
		)
		require.NoError(t, pull(t, client, "unused:1"))
		time.Sleep(time.Minute)
		node.SetDiskUsed(0.9)
		time.Sleep(time.Minute)
		require.Empty(t, evicted)
		require.EqualValues(t, 1, reclaimed.Load(), "one image was not in use")
		left, err := client.Images(t.Context())
		require.NoError(t, err)
		require.Len(t, left, 2)
		require.Equal(t, corev1.PodRunning, statuses.Of("web").Phase)
		require.NoError(t, a.Healthy())

		require.True(t, pods.Delete(waits.Namespace, waits.Name))
		time.Sleep(time.Minute)
		node.SetDiskUsed(0.9)
		time.Sleep(time.Minute)
		require.Empty(t, evicted)
		require.EqualValues(t, 2, reclaimed.Load(), "no pod needs the image")
	})
}

// pull has the runtime fetch an image that no pod of the agent needs.
func pull(t *testing.T, client *cri.Client, ref string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "puller", Namespace: "x", UID: "uid-puller"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: ref}}}}
	podspec.Default(pod)
	applied := client.Apply(t.Context(), pod, []runtime.Action{{Type: runtime.CreateSandbox}, {Type: runtime.StartContainer, Container: "c"}}, runtime.RunOptions{Dir: t.TempDir(), LogDir: t.TempDir()})
	for _, f := range applied.Failures {
		return f.Err
	}
	observed, err := client.Pod(t.Context(), pod.UID)
	if err != nil {
		return err
	}
	if err := client.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: time.Second}); err != nil {
		return err
	}
	observed, err = client.Pod(t.Context(), pod.UID)
	if err != nil {
		return err
	}
	return client.Remove(t.Context(), observed)
}

// CG-1, CG-2: of a container that crashes repeatedly the last exited one stays, so that
// restart counts and last states are reported as before.
func TestDeadContainersAreCollected(t *testing.T) {
	inside(t, func(t *testing.T, _ *embedded.Runtime, client *cri.Client, start func(...agent.Option) *agent.Agent) {
		var statuses agenttest.Statuses
		pod := agenttest.SizedPod("crash", "1Mi", "0s=1Mi")
		pod.Annotations["sim.sublet.dev/run-for"] = "1s"
		pod.Annotations["sim.sublet.dev/exit-code"] = "3"
		start(agent.WithSource("memory", podsource.NewMemory(pod)), agent.WithStatusSink(&statuses))
		time.Sleep(20 * time.Minute)
		p, err := client.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		require.LessOrEqual(t, len(p.Containers), 2)
		c := statuses.Of("crash").ContainerStatuses[0]
		require.Greater(t, c.RestartCount, int32(5))
		require.NotNil(t, c.LastTerminationState.Terminated)
		require.Equal(t, int32(3), c.LastTerminationState.Terminated.ExitCode)
	})
}

// CG-2: what an evicted pod has left in the runtime is removed once its source has its status. The next agent neither
// starts it nor forgets what it was.
func TestAgent_RemovesContainersOfEvictedPods(t *testing.T) {
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, m *agenttest.Machine) {
		all := map[string]*corev1.Pod{"web": agenttest.Pod("web"), "job": agenttest.PodWithPolicy("job", corev1.RestartPolicyNever, "run-for=1s")}
		pods := podsource.NewMemory(all["web"], all["job"])
		var reachable atomic.Bool
		start := func() *agenttest.Process {
			return m.Start(agent.WithSource("http", podsource.NotStatic(pods)), agent.WithStatusSink(status.SinkFunc(
				func(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
					if podspec.IsTerminalPhase(st.Phase) && !reachable.Load() {
						return errors.New("the server is away")
					}
					with := all[pod.Name].DeepCopy()
					with.Status = st
					pods.Put(with)
					return nil
				})))
		}
		left := func() (names []string) {
			list, err := m.Client.Pods(t.Context())
			require.NoError(t, err)
			for i := range list {
				names = append(names, list[i].Name)
			}
			slices.Sort(names)
			return names
		}
		a := start()
		time.Sleep(time.Minute)
		require.NoError(t, a.Evict(t.Context(), "default", "web", time.Second))
		time.Sleep(5 * time.Minute)
		require.Equal(t, []string{"job", "web"}, left(), "its source does not have its status yet")
		reachable.Store(true)
		time.Sleep(10 * time.Minute)
		require.Equal(t, []string{"job"}, left(), "a completed pod keeps its logs")
		before, err := a.Pod("default", "web")
		require.NoError(t, err)
		require.Equal(t, "Evicted", before.Status.Reason)
		a.Stop()

		a = start()
		time.Sleep(5 * time.Minute)
		after, err := a.Pod("default", "web")
		require.NoError(t, err)
		before.Status.Conditions, after.Status.Conditions = nil, nil // a message tells that the sandbox is gone
		assert.Equal(t, asJSON(t, before.Status), asJSON(t, after.Status))
		assert.Empty(t, m.Running())
		a.Stop()
	})
}

// CG-3: what a container writes all the time never takes more than its share.
func TestLogsAreRotated(t *testing.T) {
	dir := t.TempDir()
	inside(t, func(t *testing.T, _ *embedded.Runtime, client *cri.Client, _ func(...agent.Option) *agent.Agent) {
		pod := agenttest.SizedPod("loud", "1Mi", "0s=1Mi")
		pod.Annotations["sim.sublet.dev/output"] = strings.Repeat("x", 100)
		pod.Annotations["sim.sublet.dev/output-every"] = "1s"
		a, err := agent.New(
			agent.WithNodeName("node"), agent.WithRuntime(client), agent.WithRootDir(t.TempDir()),
			agent.WithNode(node.Config{DisableCgroups: true, PodLogsDir: dir}), agent.WithConfig(logrotate.Config{MaxSize: 1000, MaxFiles: 3}),
			agent.WithSource("memory", podsource.NewMemory(pod)),
		)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		defer func() {
			cancel()
			assert.NoError(t, <-done)
		}()
		time.Sleep(5 * time.Minute)
		files, err := filepath.Glob(filepath.Join(dir, "default_loud_*", "main", "*"))
		require.NoError(t, err)
		require.Len(t, files, 3)
		for _, f := range files {
			info, err := os.Stat(f)
			require.NoError(t, err)
			require.Less(t, info.Size(), int64(3000), f)
		}
	})
}

// bare has none of a runtime's optional powers.
type bare struct{ agent.Runtime }

func TestNew_RejectsInvalidCollectionOptions(t *testing.T) {
	for name, tt := range map[string]struct {
		opts []agent.Option
		want []string
	}{
		"all faults at once": {
			[]agent.Option{
				agent.WithConfig(eviction.Config{Thresholds: []eviction.Threshold{{Signal: "nonsense"}, {Signal: eviction.NodeFSAvailable, GracePeriod: -1}}}),
				agent.WithConfig(imagegc.Config{Policy: imagegc.Policy{HighThresholdPercent: 50, LowThresholdPercent: 60}}),
				agent.WithConfig(containergc.Config{Policy: containergc.Policy{MinAge: -1}}),
				agent.WithConfig(logrotate.Config{MaxFiles: 1}),
				agent.WithConfig(cri.Config{Pulls: cri.PullLimits{MaxParallel: -1}}),
			},
			[]string{"nonsense", `"nodefs.available<0": the value must be above 0`, "LowThresholdPercent 60", "containergc: Config.Policy", "MaxFiles must be at least 2", "MaxParallel:-1"},
		},
		"a runtime that cannot": {
			[]agent.Option{agent.WithRuntime(bare{}), agent.WithRootDir("/nowhere"), agent.WithConfig(imagegc.Config{})},
			[]string{"WithConfig(imagegc.Config): the runtime is no runtime.ImageStore", "runtime.ImageUser", "runtime.ImageFSReporter"},
		},
		"pulls of a runtime that is not ours": {
			[]agent.Option{agent.WithRuntime(bare{}), agent.WithRootDir("/nowhere"), agent.WithConfig(cri.Config{Pulls: cri.PullLimits{MaxParallel: 1}})},
			[]string{"no effect of WithConfig(cri.Config)"},
		},
		"negative transition": {[]agent.Option{agent.WithConfig(eviction.Config{PressureTransitionPeriod: -1})}, []string{"PressureTransitionPeriod: must not be negative: -1ns"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := agent.New(append(tt.opts, agent.WithSource("m", podsource.NewMemory()))...)
			for _, want := range tt.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
	_, err := agent.New(agent.WithRuntime(bare{}), agent.WithRootDir("/nowhere"), agent.WithSource("m", podsource.NewMemory()))
	require.NoError(t, err, "what a runtime cannot do and nobody asked for is left out")
	_, err = os.Stat("/nowhere")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// hardThresholds parses a list in the form of the kubelet's flag.
func hardThresholds(list string) []eviction.Threshold {
	thresholds, err := eviction.ParseThresholds(list, "", "", "")
	if err != nil {
		panic(err)
	}
	return thresholds
}
