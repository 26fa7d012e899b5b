package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/status"
)

// TestMain runs the tests on one thread: with more, the race detector can crash on the
// timers of a bubble.
func TestMain(m *testing.M) {
	goruntime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

const gib = 1 << 30

// node is a machine: a simulated runtime and a root directory, which outlive assemblies.
// It is the sink and the UsageProvider of them.
type node struct {
	t      *testing.T
	root   string
	client *cri.Client
	pods   *podsource.Memory
	source podsource.Source // in place of pods; may be nil

	mu       sync.Mutex // guards the fields below
	statuses map[string]corev1.PodStatus
	memory   map[string]uint64 // working sets by the name of the pod
}

// onNode runs a test in a bubble on a node of its own with these pods.
func onNode(t *testing.T, test func(t *testing.T, n *node), pods ...*corev1.Pod) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{}), Grace: -1})
		require.NoError(t, err)
		cc, err := rt.Dial()
		require.NoError(t, err)
		client, err := cri.New(cc, cri.Config{Owner: "test"})
		require.NoError(t, err)
		test(t, &node{
			t: t, root: t.TempDir(), client: client, pods: podsource.NewMemory(pods...),
			statuses: map[string]corev1.PodStatus{}, memory: map[string]uint64{},
		})
		assert.NoError(t, cc.Close())
		assert.NoError(t, rt.Close())
	})
}

// start starts an assembly and returns a function that stops it.
func (n *node) start() (stop func()) {
	n.t.Helper()
	thresholds, err := eviction.ParseThresholds("memory.available<100Mi", "", "", "")
	require.NoError(n.t, err)
	source := n.source
	if source == nil {
		source = n.pods
	}
	a, err := assemble(config{
		nodeName: "node", rootDir: n.root, owner: "test", runtime: n.client,
		sources: []podsource.NamedSource{{Name: "test", Source: podsource.NotStatic(source)}}, // static pods are not evicted
		sinks:   []status.Sink{n},
		images:  imagegc.Policy{HighThresholdPercent: 100, MinAge: -1, MaxAge: 10 * time.Minute},
		evict:   eviction.Config{Usage: n, Thresholds: thresholds},
		logger:  slog.New(slog.DiscardHandler),
	})
	require.NoError(n.t, err)
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- a.run(ctx) }()
	return func() {
		n.t.Helper()
		assert.NoError(n.t, a.loop.Healthy())
		cancel()
		assert.NoError(n.t, <-done)
	}
}

// SetStatus implements status.Sink.
func (n *node) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.statuses[pod.Name] = st
	return nil
}

func (n *node) status(name string) corev1.PodStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.statuses[name]
}

// setMemory sets the working set of a pod.
func (n *node) setMemory(name string, bytes uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.memory[name] = bytes
}

// Usage implements eviction.UsageProvider: the node has 1 GiB, and its running pods use
// what the test says.
func (n *node) Usage(ctx context.Context, _ time.Time) (runtime.NodeUsage, error) {
	now := time.Now()
	usage := runtime.NodeUsage{Memory: runtime.MemoryUsage{At: now, Capacity: gib}}
	pods, err := n.client.Pods(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range pods {
		if p.CouldHaveRunningContainers() {
			bytes := n.memory[p.Name]
			usage.Pods = append(usage.Pods, runtime.PodUsage{UID: p.UID, Memory: runtime.MemoryUsage{At: now, WorkingSet: bytes}})
			usage.Memory.WorkingSet += bytes
		}
	}
	return usage, err
}

// containers returns the ids of a pod's containers, those that run or those that do not.
func (n *node) containers(name string, running bool) (ids []string) {
	n.t.Helper()
	pods, err := n.client.Pods(n.t.Context())
	require.NoError(n.t, err)
	for _, p := range pods {
		for _, c := range p.Containers {
			if p.Name == name && (c.State == runtime.Running) == running {
				ids = append(ids, c.ID)
			}
		}
	}
	return ids
}

// images returns the names of the images on the node.
func (n *node) images() (names []string) {
	n.t.Helper()
	images, err := n.client.Images(n.t.Context())
	require.NoError(n.t, err)
	for _, i := range images {
		names = append(names, i.Tags...)
	}
	slices.Sort(names)
	return names
}

// logs returns the directories of pod logs.
func (n *node) logs() []string {
	n.t.Helper()
	dirs, err := filepath.Glob(filepath.Join(n.root, "logs", "*"))
	require.NoError(n.t, err)
	return dirs
}

// newPod returns a pod with an image of its own. script has keys of simulated.Script and
// their values.
func newPod(name string, script map[string]string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: map[string]string{}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "example.com/" + name + ":1",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")}},
		}}},
	}
	for key, value := range maps.All(script) {
		pod.Annotations[simulated.ScriptPrefix+key] = value
	}
	return pod
}

// SL-3, SL-6, SL-7
func TestAssembly_AdoptsRunningPods(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		stop := n.start()
		time.Sleep(time.Minute)
		require.Equal(t, corev1.PodRunning, n.status("web").Phase)
		web, old := n.containers("web", true), n.containers("old", true)
		require.Len(t, web, 1)
		require.Len(t, old, 1)
		startTime := n.status("web").StartTime
		restarts := n.status("crash").ContainerStatuses[0].RestartCount
		require.Positive(t, restarts)
		stop()

		time.Sleep(time.Hour)
		require.Equal(t, web, n.containers("web", true), "a stop leaves pods running")
		n.pods.Delete("default", "old")
		defer n.start()()
		time.Sleep(time.Minute)
		require.Equal(t, web, n.containers("web", true), "the container is the same one")
		require.Empty(t, n.containers("web", false), "no other one was started")
		require.Equal(t, startTime.UTC(), n.status("web").StartTime.UTC())
		require.Zero(t, n.status("web").ContainerStatuses[0].RestartCount)
		require.Greater(t, n.status("crash").ContainerStatuses[0].RestartCount, restarts, "restarts count on")
		require.Empty(t, n.containers("old", true), "a pod that was deleted meanwhile is terminated")
	}, newPod("web", nil), newPod("old", nil), newPod("crash", map[string]string{"run-for": "1s", "exit-code": "3"}))
}

// sourceFunc is a source that delivers one set.
type sourceFunc func() podsource.Set

func (f sourceFunc) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	deliver(f())
	<-ctx.Done()
	return nil
}

// SR-7: of two pods with one name the one that ran before a restart stays.
func TestAssembly_KeepsNamesOverRestart(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		first, second := newPod("web", nil), newPod("web", nil)
		first.UID, second.UID = "first", "second"
		manifests := []podsource.Manifest{{Pod: second}}
		n.source = sourceFunc(func() podsource.Set { return podsource.Set{Pods: manifests} })
		stop := n.start()
		time.Sleep(time.Minute)
		web := n.containers("web", true)
		require.Len(t, web, 1)
		stop()

		manifests = []podsource.Manifest{{Pod: first}, {Pod: second}}
		defer n.start()()
		time.Sleep(time.Minute)
		require.Equal(t, web, n.containers("web", true))
	})
}

func TestAssembly_CollectsDeletedPods(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		defer n.start()()
		time.Sleep(time.Minute)
		require.Len(t, n.logs(), 2)
		require.Equal(t, []string{"example.com/job:1", "example.com/web:1"}, n.images())

		require.True(t, n.pods.Delete("default", "job"))
		time.Sleep(5 * time.Minute)
		require.Empty(t, n.containers("job", true))
		require.Empty(t, n.containers("job", false))
		require.Len(t, n.logs(), 1)
		require.Contains(t, n.logs()[0], "default_web_")
		pods, err := os.ReadDir(filepath.Join(n.root, "pods"))
		require.NoError(t, err)
		require.Len(t, pods, 1)
		require.Len(t, n.images(), 2, "the image is younger than MaxAge")

		time.Sleep(20 * time.Minute)
		require.Equal(t, []string{"example.com/web:1"}, n.images(), "an image that a pod uses is kept")
	}, newPod("web", map[string]string{"output": "hello"}), newPod("job", map[string]string{"output": "hello"}))
}

func TestAssembly_LimitsExitedContainers(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		defer n.start()()
		time.Sleep(30 * time.Minute)
		require.Greater(t, n.status("crash").ContainerStatuses[0].RestartCount, int32(5))
		require.LessOrEqual(t, len(n.containers("crash", false)), 2)
	}, newPod("crash", map[string]string{"run-for": "1s", "exit-code": "3"}))
}

func TestAssembly_EvictsUnderMemoryPressure(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		n.setMemory("calm", 50<<20)
		n.setMemory("greedy", 50<<20)
		defer n.start()()
		time.Sleep(time.Minute)
		require.Equal(t, corev1.PodRunning, n.status("greedy").Phase)

		n.setMemory("greedy", 950<<20)
		time.Sleep(time.Minute)
		require.Equal(t, corev1.PodFailed, n.status("greedy").Phase)
		require.Equal(t, eviction.Reason, n.status("greedy").Reason)
		require.Empty(t, n.containers("greedy", true))
		require.Equal(t, corev1.PodRunning, n.status("calm").Phase)
		require.Len(t, n.containers("calm", true), 1)
	}, newPod("calm", nil), newPod("greedy", nil))
}

func TestRunStages_StopInOrder(t *testing.T) {
	failure := errors.New("failure")
	for name, tt := range map[string]struct {
		end  error         // of the component that may end
		span time.Duration // until it ends
		want []string
		errs []error
	}{
		"stop":    {nil, 2 * time.Hour, []string{"first", "second", "third"}, nil},
		"failure": {failure, time.Minute, []string{"second", "first", "third"}, []error{failure}},
		"exit":    {nil, time.Minute, []string{"second", "first", "third"}, []error{errExited}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var order []string
				component := func(name string, end error, span time.Duration) stage {
					return stage{name: func(ctx context.Context) error {
						defer func() { order = append(order, name) }()
						select {
						case <-ctx.Done():
							time.Sleep(time.Minute) // a later stage must not stop meanwhile
							return nil
						case <-time.After(span):
							return end
						}
					}}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err := runStages(ctx, component("first", nil, 24*time.Hour), component("second", tt.end, tt.span), component("third", nil, 24*time.Hour))
				require.Equal(t, tt.want, order)
				if len(tt.errs) == 0 {
					require.NoError(t, err)
				}
				for _, want := range tt.errs {
					require.ErrorIs(t, err, want)
					require.ErrorContains(t, err, "second: ")
				}
			})
		})
	}
}

func TestLock_RejectsSecondAgent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	unlock, err := lock(dir)
	require.NoError(t, err)
	_, err = lock(dir)
	require.Error(t, err)
	unlock()
	unlock, err = lock(dir)
	require.NoError(t, err)
	unlock()
}

// serve runs the pods of a directory on the simulated runtime, and ends without an error.
func TestServe_RunsManifests(t *testing.T) {
	dir, manifests := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(manifests, "web.yaml"), []byte(`
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: main, image: example.com/web:1}]}
`), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, dir, manifests, "", config{nodeName: "node", owner: "test"}) }()
	assert.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "statuses", "default_web-node_*.json"))
		return err == nil && len(files) == 1
	}, time.Minute, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	require.Error(t, serve(t.Context(), "", manifests, "", config{}))
}
