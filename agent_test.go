package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/status"
)

// untouched is a runtime whose methods must not be called.
type untouched struct{ agent.Runtime }

// AG-1: New reports all errors at once.
func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := agent.New(
		agent.WithNodeName(""),
		agent.WithRootDir("relative"),
		agent.WithNode(node.Config{PodLogsDir: "logs", CgroupRoot: "pods", MaxPods: -1}),
		agent.WithRuntime(nil),
		agent.WithSource("", nil),
		agent.WithStatusSink(nil),
		agent.WithLogger(nil),
		agent.WithRecorder(nil),
		agent.WithAdmitter(nil),
		agent.WithSoftAdmitter(nil),
		agent.WithInjector(nil),
		agent.WithConfig(podworkers.DrainConfig{Timeout: -time.Second}),
		agent.WithConfig(podworkers.Config{ResyncPeriod: -1}),
		agent.WithConfig(eviction.Config{Thresholds: []eviction.Threshold{{Signal: "lots"}}}),
	)
	require.Error(t, err)
	for _, want := range []string{
		"WithNodeName: nil or empty", `root dir "relative": not an absolute path`, `"logs" is not an absolute path`, `"pods" is not an absolute path`,
		"MaxPods -1 is negative", "WithRuntime: nil", "podsource: Config.Sources: name of source 0 required", "WithStatusSink: nil", "WithLogger: nil", "WithRecorder: nil", "WithAdmitter: nil",
		"WithSoftAdmitter: nil", "WithInjector: nil", "DrainConfig.Timeout: must not be negative: -1s", "podworkers: Config.ResyncPeriod: must not be negative", "lots",
	} {
		assert.ErrorContains(t, err, want)
	}
}

// AG-1: New rejects an option that contradicts itself or another one.
func TestNew_RejectsContradictoryOptions(t *testing.T) {
	rt, src := untouched{}, podsource.NewMemory()
	root, sim := agent.WithRootDir("/var/lib/sublet-test"), agent.WithSimulatedRuntime()
	for name, c := range map[string]struct {
		opts []agent.Option
		want string // empty: fine
	}{
		"a name twice, the same":            {[]agent.Option{sim, agent.WithNodeName("a"), agent.WithNodeName("a")}, ""},
		"two names":                         {[]agent.Option{agent.WithNodeName("a"), agent.WithNodeName("b")}, `WithNodeName: set to "a" and to "b"`},
		"two root directories":              {[]agent.Option{root, agent.WithRootDir("/other")}, "WithRootDir: set to"},
		"one root directory, two spellings": {[]agent.Option{sim, root, agent.WithRootDir("/var/lib/../lib/sublet-test/")}, ""},
		"two runtimes":                      {[]agent.Option{root, agent.WithRuntime(rt), agent.WithRuntime(rt)}, "WithRuntime: set twice"},
		"a runtime and an endpoint":         {[]agent.Option{root, agent.WithRuntime(rt), agent.WithRuntimeEndpoint("unix:///x.sock")}, "WithRuntime, WithRuntimeEndpoint and WithSimulatedRuntime exclude each other"},
		"an endpoint and a runtime":         {[]agent.Option{root, agent.WithRuntimeEndpoint("unix:///x.sock"), agent.WithRuntime(rt)}, "WithRuntime, WithRuntimeEndpoint and WithSimulatedRuntime exclude each other"},
		"three endpoints":                   {[]agent.Option{root, agent.WithRuntimeEndpoint("unix:///a", "unix:///b", "unix:///c")}, "want one socket and at most one image socket"},
		"no runtime":                        {nil, "no runtime; give WithRuntimeEndpoint"},
		"simulated and real":                {[]agent.Option{root, sim, agent.WithRuntime(rt)}, "exclude each other"},
		"simulated twice":                   {[]agent.Option{sim, sim}, "WithSimulatedRuntime: set twice"},
		"a real runtime without root":       {[]agent.Option{agent.WithRuntime(rt)}, "required with a container runtime"},
		"two sources of one name":           {[]agent.Option{sim, agent.WithSource("a", src), agent.WithSource("a", src)}, `"a"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := agent.New(append(c.opts, agent.WithNode(node.Config{DisableCgroups: true}))...)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}

// AG-1: New has no side effects. A goroutine would keep the bubble from ending, and
// a call of the runtime would panic.
func TestNew_HasNoSideEffects(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		_, err := agent.New(
			agent.WithRootDir(filepath.Join(dir, "root")), agent.WithRuntime(untouched{}),
			agent.WithSource("file", podsource.File(filepath.Join(dir, "manifests"))), agent.WithSource("memory", podsource.NewMemory(agenttest.Pod("web"))),
			agent.WithNode(node.Config{DisableCgroups: true, PodLogsDir: filepath.Join(dir, "logs")}),
		)
		require.NoError(t, err)
	})
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// AG-1: Run returns nil after a clean stop, and a second call fails. AG-2: an agent
// with the fewest options runs pods.
func TestAgent_RunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var phases []corev1.PodPhase
		a, err := agent.New(
			agent.WithNode(node.Config{DisableCgroups: true}), agent.WithSimulatedRuntime(), agent.WithSource("memory", podsource.NewMemory(agenttest.Pod("web"))),
			agent.WithStatusSink(status.SinkFunc(func(_ context.Context, _ *corev1.Pod, st corev1.PodStatus) error {
				phases = append(phases, st.Phase)
				return nil
			})),
		)
		require.NoError(t, err)
		done := make(chan error)
		go func() { done <- a.Run(ctx) }()
		synctest.Wait()
		assert.Equal(t, corev1.PodRunning, phases[len(phases)-1])
		require.NoError(t, a.Healthy())
		require.Len(t, a.Pods(), 1)
		assert.Equal(t, corev1.PodRunning, a.Pods()[0].Status.Phase)
		require.ErrorIs(t, a.Run(ctx), agent.ErrAlreadyRun)
		cancel()
		require.NoError(t, <-done)
	})
}

// What needs the runtime is an error before there is one, as for a client that is served before Run has connected.
func TestAgent_BeforeRun(t *testing.T) {
	a, err := agent.New(
		// The resolver of names belongs to the bubble of the test that was first to use it.
		agent.WithNode(node.Config{DisableCgroups: true, Addresses: func() ([]corev1.NodeAddress, error) { return nil, nil }}),
		agent.WithSimulatedRuntime(), agent.WithSource("memory", podsource.NewMemory(agenttest.Pod("web"))),
		agent.WithConfig(imagegc.Config{}), agent.WithConfig(containergc.Config{}),
	)
	require.NoError(t, err)
	calls := map[string]func() error{
		"Stats":             func() error { _, err := a.Stats(t.Context()); return err },
		"CPUAndMemoryStats": func() error { _, err := a.CPUAndMemoryStats(t.Context()); return err },
		"NodeStatus":        func() error { _, err := a.NodeStatus(t.Context()); return err },
		"ExplainImages":     func() error { _, err := a.ExplainImages(t.Context(), true); return err },
		"ExplainContainers": func() error { _, err := a.ExplainContainers(t.Context()); return err },
	}
	for name, call := range calls {
		assert.EqualError(t, call(), "the agent is not running", name)
	}
	require.Error(t, a.Healthy())
	assert.Empty(t, a.Pods())
	assert.NotEmpty(t, a.Conditions())
	assert.Empty(t, a.Problems())

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	for name, call := range calls {
		assert.Eventually(t, func() bool { return call() == nil }, time.Minute, time.Millisecond, name)
	}
	cancel()
	require.NoError(t, <-done)
}

// Without a root directory of its own, an agent leaves nothing, mounts included. As root, a
// volume in memory is one.
func TestAgent_RemovesATemporaryRootDir(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		pod, volume := agenttest.Pod("web"), new(corev1.EmptyDirVolumeSource)
		if os.Geteuid() == 0 {
			volume.Medium = corev1.StorageMediumMemory // is mounted
		}
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: volume}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		a, err := agent.New(agent.WithNode(node.Config{DisableCgroups: true}), agent.WithSimulatedRuntime(), agent.WithSource("memory", podsource.NewMemory(pod)))
		require.NoError(t, err)
		done := make(chan error)
		go func() { done <- a.Run(ctx) }()
		synctest.Wait()
		require.Equal(t, corev1.PodRunning, a.Pods()[0].Status.Phase)
		cancel()
		require.NoError(t, <-done)
	})
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	assert.Empty(t, left)
}

// AG-2: the agent uses the components given by options.
func TestNew_UsesComponentsOfOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := agenttest.New(t, agenttest.Config{})
		var waits int
		admit := admitFunc(func(pod *corev1.Pod) bool { return pod.Name != "denied" })
		h.AddOptions(
			agent.WithAdmitter(admit),
			agent.WithConfig(podsync.Config{BackOff: backOffFunc(func(r runtime.RestartInfo) time.Duration { waits++; return 3 * time.Second })}),
		)
		h.Start()
		h.Memory.Put(agenttest.Pod("denied"), agenttest.Pod("crashes", "run-for=1s", "exit-code=1"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		st := h.LastStatus("denied")
		assert.Equal(t, corev1.PodFailed, st.Phase)
		assert.Equal(t, "AdmissionDenied", st.Reason)
		assert.NotZero(t, waits)
		h.Stop()
		h.ShutDown()
	})
}

// AG-3: a second agent on the same root directory does not start, and its error names
// the process that has the directory. It starts after the first has stopped.
func TestAgent_LocksItsRootDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := agenttest.New(t, agenttest.Config{})
		h.Start()
		synctest.Wait()
		other, err := agent.New(agent.WithRootDir(h.Dir), agent.WithRuntime(untouched{}), agent.WithNode(node.Config{DisableCgroups: true}))
		require.NoError(t, err)
		err = other.Run(t.Context())
		require.ErrorContains(t, err, h.Dir)
		require.ErrorIs(t, err, agent.ErrRootInUse)
		require.ErrorContains(t, err, fmt.Sprint(os.Getpid()))
		h.Stop()
		h.Start()
		h.Memory.Put(agenttest.Pod("web"))
		synctest.Wait()
		assert.Len(t, h.Running(), 1)
		h.Stop()
		h.ShutDown()
	})
}

// AG-6: two agents with their own runtimes in one process are independent.
func TestAgent_SharesAProcessWithAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := agenttest.New(t, agenttest.Config{}), agenttest.New(t, agenttest.Config{})
		one.Start()
		two.Start()
		one.Memory.Put(agenttest.Pod("web"), agenttest.Pod("only-one"))
		two.Memory.Put(agenttest.Pod("web"), agenttest.Pod("only-two"))
		time.Sleep(time.Minute)
		one.Memory.Delete("default", "web")
		time.Sleep(time.Minute)
		names := func(h *agenttest.Harness) (names []string) {
			for _, c := range h.Running() {
				names = append(names, c.GetLabels()["io.kubernetes.pod.name"])
			}
			slices.Sort(names)
			return names
		}
		assert.Equal(t, []string{"only-one"}, names(one))
		assert.Equal(t, []string{"only-two", "web"}, names(two))
		assert.NotContains(t, one.Trace.String(), "only-two")
		assert.NotContains(t, two.Trace.String(), "only-one")
		one.Stop()
		synctest.Wait()
		require.NoError(t, two.Agent().Healthy())
		two.Memory.Put(agenttest.Pod("late"))
		synctest.Wait()
		assert.Equal(t, []string{"late", "only-two", "web"}, names(two))
		two.Stop()
		one.ShutDown()
		two.ShutDown()
	})
}

// The error of Run names the path that cannot be used.
func TestAgent_NamesUnusableRootDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	a, err := agent.New(agent.WithRootDir(filepath.Join(file, "root")), agent.WithNode(node.Config{DisableCgroups: true}), agent.WithRuntime(untouched{}))
	require.NoError(t, err)
	require.ErrorContains(t, a.Run(t.Context()), file)
}

// While no process listens at the runtime's endpoint, the agent is unhealthy. It
// starts its pods when the runtime answers, and stops cleanly.
func TestAgent_WaitsForItsRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := agenttest.New(t, agenttest.Config{})
		h.Down()
		h.Start()
		h.Memory.Put(agenttest.Pod("web"))
		time.Sleep(time.Minute)
		err := h.Agent().Healthy()
		require.ErrorIs(t, err, runtime.ErrUnavailable)
		require.ErrorContains(t, err, "connection refused")
		h.Up()
		time.Sleep(6 * time.Second)
		require.NoError(t, h.Agent().Healthy())
		assert.Len(t, h.Running(), 1)
		h.Stop()
		h.ShutDown()
	})
}

var _ agent.Runtime = (*cri.Client)(nil)

type admitFunc func(pod *corev1.Pod) bool

// Admit implements syncloop.Admitter.
func (f admitFunc) Admit(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	if f(pod) {
		return podspec.Admitted()
	}
	return podspec.AdmitResult{Reason: "AdmissionDenied", Message: "admission denied"}
}

type backOffFunc func(runtime.RestartInfo) time.Duration

// Delay implements runtime.BackOff.
func (f backOffFunc) Delay(r runtime.RestartInfo) time.Duration { return f(r) }
