package agent_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/status"
)

// untouched is a runtime whose methods must not be called.
type untouched struct{ agent.Runtime }

func simplePod(name string, annotations ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "app:1"}}},
	}
	for _, a := range annotations {
		key, value, _ := strings.Cut(a, "=")
		pod.Annotations[embedded.ScriptPrefix+key] = value
	}
	return pod
}

// AG-1: New reports all errors at once.
func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := agent.New(
		agent.WithNodeName(""),
		agent.WithRootDir("relative"),
		agent.WithNode(agent.NodeConfig{PodLogsDir: "logs", CgroupRoot: "pods", MaxPods: -1}),
		agent.WithRuntime(nil),
		agent.WithSource("", nil),
		agent.WithStatusSink(nil),
		agent.WithLogger(nil),
		agent.WithRecorder(nil),
		agent.WithAdmitter(nil),
		agent.WithSoftAdmitter(nil),
		agent.WithBackOff(nil),
		agent.WithShutdownPolicy(agent.ShutdownPolicy{DrainTimeout: -time.Second}),
		agent.WithTiming(agent.Timing{ResyncPeriod: -1}),
		agent.WithEviction(eviction.Config{Thresholds: []eviction.Threshold{{Signal: "lots"}}}),
	)
	require.Error(t, err)
	for _, want := range []string{
		"node name: empty", `root dir "relative": not an absolute path`, `"logs" is not an absolute path`, `"pods" is not an absolute path`,
		"MaxPods -1 is negative", "runtime: nil", `source ""`, "status sink: nil", "logger: nil", "recorder: nil", "admitter: nil",
		"soft admitter: nil", "back-off: nil", "DrainTimeout -1s is negative", "timing: negative value", "lots",
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
		"two names":                         {[]agent.Option{agent.WithNodeName("a"), agent.WithNodeName("b")}, `node name: set to "a" and to "b"`},
		"two root directories":              {[]agent.Option{root, agent.WithRootDir("/other")}, "root dir: set to"},
		"one root directory, two spellings": {[]agent.Option{sim, root, agent.WithRootDir("/var/lib/../lib/sublet-test/")}, ""},
		"two runtimes":                      {[]agent.Option{root, agent.WithRuntime(rt), agent.WithRuntime(rt)}, "runtime: set twice"},
		"a runtime and an endpoint":         {[]agent.Option{root, agent.WithRuntime(rt), agent.WithRuntimeEndpoint("unix:///x.sock")}, "runtime endpoint: conflicts with WithRuntime"},
		"an endpoint and a runtime":         {[]agent.Option{root, agent.WithRuntimeEndpoint("unix:///x.sock"), agent.WithRuntime(rt)}, "runtime: set twice"},
		"three endpoints":                   {[]agent.Option{root, agent.WithRuntimeEndpoint("unix:///a", "unix:///b", "unix:///c")}, "want one socket and at most one image socket"},
		"no runtime":                        {nil, "no runtime; give WithRuntimeEndpoint"},
		"simulated and real":                {[]agent.Option{root, sim, agent.WithRuntime(rt)}, "another runtime is set"},
		"simulated twice":                   {[]agent.Option{sim, sim}, "simulated runtime: set twice"},
		"a real runtime without root":       {[]agent.Option{agent.WithRuntime(rt)}, "required with a container runtime"},
		"two sources of one name":           {[]agent.Option{sim, agent.WithSource("a", src), agent.WithSource("a", src)}, `"a"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := agent.New(append(c.opts, agent.WithNode(agent.NodeConfig{DisableCgroups: true}))...)
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
			agent.WithSource("file", podsource.File(filepath.Join(dir, "manifests"))), agent.WithSource("memory", podsource.NewMemory(simplePod("web"))),
			agent.WithNode(agent.NodeConfig{DisableCgroups: true, PodLogsDir: filepath.Join(dir, "logs")}),
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
			agent.WithNode(agent.NodeConfig{DisableCgroups: true}), agent.WithSimulatedRuntime(), agent.WithSource("memory", podsource.NewMemory(simplePod("web"))),
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

// AG-2: the agent uses the components given by options.
func TestNew_UsesComponentsOfOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, &scenario{})
		var waits int
		admit := admitFunc(func(pod *corev1.Pod) bool { return pod.Name != "denied" })
		w.opts = []agent.Option{
			agent.WithAdmitter(admit),
			agent.WithBackOff(backOffFunc(func(r runtime.RestartInfo) time.Duration { waits++; return 3 * time.Second })),
		}
		w.start()
		w.memory.Put(simplePod("denied"), simplePod("crashes", "run-for=1s", "exit-code=1"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		st := w.lastStatus("denied")
		assert.Equal(t, corev1.PodFailed, st.Phase)
		assert.Equal(t, "AdmissionDenied", st.Reason)
		assert.NotZero(t, waits)
		w.stop()
		w.shutDown()
	})
}

// AG-3: a second agent on the same root directory does not start, and its error names
// the process that has the directory. It starts after the first has stopped.
func TestAgent_LocksItsRootDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, &scenario{})
		w.start()
		synctest.Wait()
		other, err := agent.New(agent.WithRootDir(w.dir), agent.WithRuntime(untouched{}), agent.WithNode(agent.NodeConfig{DisableCgroups: true}))
		require.NoError(t, err)
		err = other.Run(t.Context())
		require.ErrorContains(t, err, w.dir)
		require.ErrorIs(t, err, agent.ErrRootInUse)
		require.ErrorContains(t, err, fmt.Sprint(os.Getpid()))
		w.stop()
		w.start()
		w.memory.Put(simplePod("web"))
		synctest.Wait()
		assert.Len(t, w.running(), 1)
		w.stop()
		w.shutDown()
	})
}

// AG-4, SL-7: an agent leaves its pods running when it stops or is killed. However
// often that happens, no container is started twice, restarted or left behind, and
// each exit code is reported.
func TestAgent_KilledAtAnyMoment(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { killAtRandom(t, rand.New(rand.NewPCG(seed, 4))) })
		})
	}
}

func killAtRandom(t *testing.T, rnd *rand.Rand) {
	w := newHarness(t, &scenario{})
	slow := []string{"sandbox-delay=300ms", "start-delay=200ms", "stop-after=700ms"}
	var pods []*corev1.Pod
	for i := range 6 {
		pods = append(pods, simplePod(fmt.Sprint("server-", i), slow...))
	}
	job := simplePod("job", append(slow, "run-for=1500ms", "exit-code=7")...)
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	w.start()
	w.memory.Put(append(pods, job)...)
	first := map[string]string{} // running container of each pod
	for range 12 {
		time.Sleep(time.Duration(rnd.IntN(600)) * time.Millisecond)
		if rnd.IntN(4) == 0 {
			w.stop()
		} else {
			w.kill()
		}
		keepIDs(t, w, first)
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		w.start()
	}
	time.Sleep(time.Minute)
	keepIDs(t, w, first)
	require.Len(t, first, 6+1, "%s", w.trace)
	for _, pod := range pods {
		st := w.lastStatus(pod.Name)
		require.Equal(t, corev1.PodRunning, st.Phase, "%s", w.trace)
		assert.Zero(t, st.ContainerStatuses[0].RestartCount)
	}
	st := w.lastStatus("job")
	require.Equal(t, corev1.PodFailed, st.Phase)
	require.NotNil(t, st.ContainerStatuses[0].State.Terminated)
	assert.EqualValues(t, 7, st.ContainerStatuses[0].State.Terminated.ExitCode)

	w.memory.Set()
	for range 4 {
		time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
		w.kill()
		w.start()
	}
	time.Sleep(time.Minute)
	assert.Equal(t, "end, with nothing left in the runtime\n", w.left())
	w.stop()
	w.shutDown()
}

// keepIDs checks that no pod has another container than the one it had first.
func keepIDs(t *testing.T, w *harness, first map[string]string) {
	for _, c := range w.running() {
		pod := c.GetLabels()["io.kubernetes.pod.name"]
		if first[pod] == "" {
			first[pod] = c.GetId()
		}
		assert.Equal(t, first[pod], c.GetId(), "%s has another container\n%s", pod, w.trace)
	}
}

// AG-6: two agents with their own runtimes in one process are independent.
func TestAgent_SharesAProcessWithAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newHarness(t, &scenario{}), newHarness(t, &scenario{})
		one.start()
		two.start()
		one.memory.Put(simplePod("web"), simplePod("only-one"))
		two.memory.Put(simplePod("web"), simplePod("only-two"))
		time.Sleep(time.Minute)
		one.memory.Delete("default", "web")
		time.Sleep(time.Minute)
		names := func(w *harness) (names []string) {
			for _, c := range w.running() {
				names = append(names, c.GetLabels()["io.kubernetes.pod.name"])
			}
			slices.Sort(names)
			return names
		}
		assert.Equal(t, []string{"only-one"}, names(one))
		assert.Equal(t, []string{"only-two", "web"}, names(two))
		assert.NotContains(t, one.trace.String(), "only-two")
		assert.NotContains(t, two.trace.String(), "only-one")
		one.stop()
		synctest.Wait()
		require.NoError(t, two.current.agent.Healthy())
		two.memory.Put(simplePod("late"))
		synctest.Wait()
		assert.Equal(t, []string{"late", "only-two", "web"}, names(two))
		two.stop()
		one.shutDown()
		two.shutDown()
	})
}

// The error of Run names the path that cannot be used.
func TestAgent_NamesUnusableRootDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	a, err := agent.New(agent.WithRootDir(filepath.Join(file, "root")), agent.WithNode(agent.NodeConfig{DisableCgroups: true}), agent.WithRuntime(untouched{}))
	require.NoError(t, err)
	require.ErrorContains(t, a.Run(t.Context()), file)
}

// While no process listens at the runtime's endpoint, the agent is unhealthy. It
// starts its pods when the runtime answers, and stops cleanly.
func TestAgent_WaitsForItsRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, &scenario{})
		w.down()
		w.start()
		w.memory.Put(simplePod("web"))
		time.Sleep(time.Minute)
		err := w.current.agent.Healthy()
		require.ErrorIs(t, err, runtime.ErrUnavailable)
		require.ErrorContains(t, err, "connection refused")
		w.up()
		time.Sleep(6 * time.Second)
		require.NoError(t, w.current.agent.Healthy())
		assert.Len(t, w.running(), 1)
		w.stop()
		w.shutDown()
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
