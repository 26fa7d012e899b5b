package containergc_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

var testTime = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

type podStates map[types.UID]containergc.PodState

func (s podStates) of(uid types.UID) containergc.PodState { return s[uid] }

// ctr is a container made so many minutes before t0.
func ctr(id, name, sandbox string, attempt uint32, state runtime.ContainerState, minutes int) runtime.Container {
	return runtime.Container{ID: id, Name: name, SandboxID: sandbox, Attempt: attempt, State: state, Created: testTime.Add(-time.Duration(minutes) * time.Minute)}
}

func box(id string, attempt uint32, state runtime.SandboxState) runtime.Sandbox {
	return runtime.Sandbox{ID: id, Attempt: attempt, State: state, Created: testTime.Add(-time.Hour)}
}

func ids(plan []containergc.Removal) []string {
	out := []string{}
	for _, r := range plan {
		if r.Container != nil {
			out = append(out, r.Container.ID)
		} else {
			out = append(out, r.Sandbox.ID)
		}
	}
	return out
}

// CG-1, CG-2
func TestPlan(t *testing.T) {
	pod := runtime.Pod{
		UID: "u1", Namespace: "ns", Name: "web",
		Sandboxes: []runtime.Sandbox{box("s2", 2, runtime.SandboxReady), box("s1", 1, runtime.SandboxNotReady), box("s0", 0, runtime.SandboxNotReady)},
		Containers: []runtime.Container{
			ctr("a3", "a", "s2", 3, runtime.Running, 1), ctr("a2", "a", "s2", 2, runtime.Exited, 10), ctr("a1", "a", "s1", 1, runtime.Exited, 20),
			ctr("a0", "a", "s0", 0, runtime.Exited, 30), ctr("i0", "i", "s1", 0, runtime.Exited, 40), ctr("b1", "b", "s2", 1, runtime.Created, 5), ctr("b0", "b", "s0", 0, runtime.Created, 30),
		},
	}
	dead := runtime.Pod{
		UID: "u2", Namespace: "ns", Name: "job", Sandboxes: []runtime.Sandbox{box("d", 0, runtime.SandboxNotReady)},
		Containers: []runtime.Container{ctr("d0", "d", "d", 0, runtime.Exited, 50)},
	}
	for _, tt := range []struct {
		name   string
		stands podStates
		policy containergc.Policy
		short  bool
		want   []string
	}{
		{"one dead a name stays, and the sandbox that holds it", nil, containergc.Policy{}, false, []string{"a0", "b0", "a1", "s0"}},
		{"two dead a name stay", nil, containergc.Policy{MaxPerPodContainer: 2}, false, []string{"a0", "b0", "s0"}},
		{"all stay", nil, containergc.Policy{MaxPerPodContainer: -1}, false, []string{"b0"}},
		{"young ones stay", nil, containergc.Policy{MinAge: 25 * time.Minute}, false, []string{"a0", "b0", "s0"}},
		{"at most so many a node: the oldest that can be spared go", nil, containergc.Policy{MaxPerPodContainer: -1, MaxContainers: 4}, false, []string{"a0", "b0", "s0"}},
		{"never those that status needs", nil, containergc.Policy{MaxPerPodContainer: -1, MaxContainers: 1}, false, []string{"a0", "b0", "a1", "s0"}},
		{"all of a pod that is gone", podStates{"u2": containergc.PodDeleted}, containergc.Policy{MinAge: 24 * time.Hour}, false, []string{"d0", "d"}},
		{"one that ended is still reported of", podStates{"u2": containergc.PodTerminated}, containergc.Policy{MaxPerPodContainer: -1}, false, []string{"b0"}},
		{"unless disk is short, and then age does not count", podStates{"u2": containergc.PodTerminated}, containergc.Policy{MaxPerPodContainer: -1, MinAge: 24 * time.Hour}, true, []string{"d0", "d", "b0"}},
		{"none stays but what decides", nil, containergc.Policy{MaxPerPodContainer: containergc.KeepUntilReplaced}, false, []string{"a0", "b0", "a1", "a2", "s0"}},
		{"what is gone goes first", podStates{"u2": containergc.PodDeleted}, containergc.Policy{}, false, []string{"d0", "d", "a0", "b0", "a1", "s0"}},
		{"what runs of a pod that is gone stays", podStates{"u1": containergc.PodDeleted}, containergc.Policy{}, false, []string{"i0", "a0", "b0", "a1", "a2", "b1", "s1", "s0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ids(containergc.Plan([]runtime.Pod{pod, dead}, tt.stands.of, tt.policy, tt.short, testTime))
			assert.Equal(t, tt.want, got)
		})
	}
}

// Each removal says why.
func TestPlan_Reasons(t *testing.T) {
	pod := runtime.Pod{
		UID: "u1", Sandboxes: []runtime.Sandbox{box("s1", 1, runtime.SandboxReady), box("s0", 0, runtime.SandboxNotReady)},
		Containers: []runtime.Container{ctr("a2", "a", "s1", 2, runtime.Running, 1), ctr("a1", "a", "s0", 1, runtime.Exited, 20), ctr("a0", "a", "s0", 0, runtime.Exited, 30)},
	}
	other := runtime.Pod{UID: "u2", Sandboxes: []runtime.Sandbox{box("d", 0, runtime.SandboxNotReady)}, Containers: []runtime.Container{ctr("d0", "d", "d", 0, runtime.Exited, 50)}}
	untilReplaced := containergc.Policy{MaxPerPodContainer: containergc.KeepUntilReplaced}
	for _, tt := range []struct {
		state  containergc.PodState
		policy containergc.Policy
		urgent bool
		want   map[string]containergc.Reason
	}{
		{containergc.PodDeleted, containergc.Policy{}, false, map[string]containergc.Reason{"d0": containergc.ReasonPodDeleted, "d": containergc.ReasonPodDeleted, "a0": containergc.ReasonReplaced}},
		{containergc.PodEvicted, containergc.Policy{}, false, map[string]containergc.Reason{"d0": containergc.ReasonPodEvicted, "d": containergc.ReasonPodEvicted, "a0": containergc.ReasonReplaced}},
		{containergc.PodTerminated, containergc.Policy{}, true, map[string]containergc.Reason{"d0": containergc.ReasonDiskUsage, "d": containergc.ReasonDiskUsage, "a0": containergc.ReasonReplaced}},
		{containergc.PodDesired, untilReplaced, false, map[string]containergc.Reason{"a0": containergc.ReasonReplaced, "a1": containergc.ReasonReplaced, "s0": containergc.ReasonUnused}},
		{containergc.PodDesired, containergc.Policy{MaxPerPodContainer: 2, MaxContainers: 2}, false, map[string]containergc.Reason{"a0": containergc.ReasonMaxContainers}},
	} {
		got := map[string]containergc.Reason{}
		for _, r := range containergc.Plan([]runtime.Pod{pod, other}, podStates{"u2": tt.state}.of, tt.policy, tt.urgent, testTime) {
			if r.Container != nil {
				got[r.Container.ID] = r.Reason
			} else {
				got[r.Sandbox.ID] = r.Reason
			}
		}
		assert.Equal(t, tt.want, got)
	}
}

func randomNode(rnd *rand.Rand) ([]runtime.Pod, podStates) {
	stands := podStates{}
	var pods []runtime.Pod
	for i := range rnd.IntN(4) {
		pod := runtime.Pod{UID: types.UID(fmt.Sprint("u", i)), Namespace: "ns", Name: "p"}
		stands[pod.UID] = containergc.PodState(rnd.IntN(4))
		n := 1 + rnd.IntN(3)
		for j := range n {
			s := box(fmt.Sprintf("s%d-%d", i, j), uint32(j), runtime.SandboxState(rnd.IntN(2)))
			s.Created = testTime.Add(-time.Duration(rnd.IntN(40)) * time.Minute)
			pod.Sandboxes = append(pod.Sandboxes, s)
		}
		for j := range rnd.IntN(8) {
			name := []string{"a", "b"}[rnd.IntN(2)]
			pod.Containers = append(pod.Containers, ctr(fmt.Sprintf("c%d-%d", i, j), name, fmt.Sprintf("s%d-%d", i, rnd.IntN(n)), uint32(j), runtime.ContainerState(rnd.IntN(4)), rnd.IntN(40)))
		}
		pods = append(pods, pod)
	}
	return pods, stands
}

// node is a runtime of dead containers.
type node struct {
	mu       sync.Mutex
	pods     map[types.UID]*runtime.Pod
	fail     map[string]error
	deleted  map[string]bool
	removed  []string
	at       []time.Time
	listings int
	twice    int // removals of what was gone
}

func (n *node) Pods(context.Context) ([]runtime.Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listings++
	n.sweep()
	var out []runtime.Pod
	for _, p := range n.pods {
		c := *p
		c.Containers, c.Sandboxes = slices.Clone(p.Containers), slices.Clone(p.Sandboxes)
		out = append(out, c)
	}
	return out, nil
}

func (n *node) RemoveContainer(_ context.Context, id string) error { return n.remove(id) }
func (n *node) RemoveSandbox(_ context.Context, id string) error   { return n.remove(id) }

func (n *node) remove(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.fail[id]; err != nil {
		return err
	}
	if n.deleted[id] {
		n.twice++
		return runtime.ErrNotFound
	}
	if n.deleted == nil {
		n.deleted = map[string]bool{}
	}
	n.deleted[id] = true
	n.removed, n.at = append(n.removed, id), append(n.at, time.Now())
	return nil
}

// sweep takes out what was removed.
func (n *node) sweep() {
	for uid, p := range n.pods {
		p.Containers = slices.DeleteFunc(p.Containers, func(c runtime.Container) bool { return n.deleted[c.ID] })
		p.Sandboxes = slices.DeleteFunc(p.Sandboxes, func(s runtime.Sandbox) bool { return n.deleted[s.ID] })
		if len(p.Containers)+len(p.Sandboxes) == 0 {
			delete(n.pods, uid)
		}
	}
}

func (n *node) left() (containers int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sweep()
	for _, p := range n.pods {
		containers += len(p.Containers)
	}
	return containers
}

func (n *node) listed() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listings
}

// crowded is a node with one pod that was restarted so often.
func crowded(dead int) *node {
	p := &runtime.Pod{UID: "u1", Namespace: "ns", Name: "web", Sandboxes: []runtime.Sandbox{box("s0", 0, runtime.SandboxReady)}}
	for i := range dead {
		p.Containers = append(p.Containers, runtime.Container{
			ID: fmt.Sprint("c", i), Name: "a", SandboxID: "s0", Attempt: uint32(i), State: runtime.Exited, Created: testTime.Add(time.Duration(i) * time.Millisecond),
		})
	}
	return &node{pods: map[types.UID]*runtime.Pod{"u1": p}, fail: map[string]error{}}
}

func collector(t *testing.T, cfg containergc.Config) *containergc.Collector {
	t.Helper()
	c, err := containergc.New(cfg)
	require.NoError(t, err)
	return c
}

// CG-1, RT-18
func TestCollector_20000ExitedContainers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long with the race detector, and is the same for all users")
	}
	synctest.Test(t, func(t *testing.T) {
		n := crowded(20_000)
		c := collector(t, containergc.Config{Containers: n, PodState: podStates{}.of})
		result, err := c.Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 19_999, result.Containers)
		assert.Equal(t, 1, n.left())
		assert.Equal(t, "c0", n.removed[0], "the oldest first")
		assert.InDelta(t, 40, n.listings, 2, "what was seen is looked at again each 10 s")
		assert.Zero(t, n.twice)
		for i := 1; i < len(n.at); i += 997 {
			require.GreaterOrEqual(t, n.at[i].Sub(n.at[i-1]), 20*time.Millisecond, "others get their turn")
		}
	})
}

func TestCollector_ReclaimIsNotPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := crowded(100)
		c := collector(t, containergc.Config{Containers: n, PodState: podStates{"u1": containergc.PodTerminated}.of})
		began := time.Now()
		require.NoError(t, c.Reclaim(t.Context()))
		assert.Zero(t, time.Since(began))
		assert.Zero(t, n.left(), "nobody needs the last one of a pod that ended")
	})
}

// One that fails keeps its sandbox, and nothing else.
func TestCollector_KeepsSandboxOfFailedRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		n := crowded(3)
		n.pods["u1"].Sandboxes[0].State = runtime.SandboxNotReady
		n.fail["c0"] = boom
		n.fail["c1"] = runtime.ErrNotFound
		var reported []error
		c := collector(t, containergc.Config{Containers: n, PodState: podStates{"u1": containergc.PodDeleted}.of, Hooks: containergc.Hooks{
			Removed: func(_ containergc.Removal, _ time.Duration, err error) { reported = append(reported, err) },
		}})
		_, err := c.Collect(t.Context())
		require.ErrorIs(t, err, boom)
		assert.ErrorContains(t, err, "remove container c0")
		require.NotErrorIs(t, err, runtime.ErrNotFound)
		assert.Equal(t, []string{"c2"}, n.removed, "the sandbox would take c0 with it")
		assert.Len(t, reported, 3)
		delete(n.fail, "c0")
		delete(n.fail, "c1")
		_, err = c.Collect(t.Context())
		require.NoError(t, err)
		assert.Zero(t, n.left())
		assert.Empty(t, n.pods)
	})
}

// CG-2: soon after a pod is deleted, not at the next look.
func TestCollector_RequestCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := crowded(5)
		stands := podStates{}
		var mu sync.Mutex
		c := collector(t, containergc.Config{Containers: n, PodState: func(uid types.UID) containergc.PodState {
			mu.Lock()
			defer mu.Unlock()
			return stands[uid]
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(10 * time.Second)
		assert.Equal(t, 5, n.left())
		mu.Lock()
		stands["u1"] = containergc.PodDeleted
		mu.Unlock()
		for range 10 {
			c.RequestCollection()
		}
		time.Sleep(time.Second)
		assert.Zero(t, n.left())
		time.Sleep(time.Second)
		assert.LessOrEqual(t, n.listed(), 2, "ten pokes are one look, at most two")
		lists := n.listed()
		time.Sleep(time.Minute)
		assert.Equal(t, lists+1, n.listed(), "and then each minute")
		cancel()
		require.NoError(t, <-ended)
	})
}

// CG-1
func TestCollector_RemovesLogsOfDeletedPods(t *testing.T) {
	dir, links := t.TempDir(), t.TempDir()
	write := func(path string) string {
		path = filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
		return path
	}
	deleted := write("ns_old_u9/a/0.log")
	stays := write("ns_web_u1/a/2.log")
	write("ns_web_u1/a/1.log")
	write("ns_web_u1/a/1.log.20260101-000000.gz")
	desired := write("ns_new_u3/a/0.log")
	foreign := write("other/a/0.log")
	alive := write("ns_alive_u4/a/0.log")
	outside := filepath.Join(t.TempDir(), "precious")
	require.NoError(t, os.Mkdir(outside, 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "ns_evil_u8")))
	link := func(name, to string, age time.Duration) string {
		path := filepath.Join(links, name)
		require.NoError(t, os.Symlink(to, path))
		if age > 0 {
			old := time.Now().Add(-age)
			require.NoError(t, lutimes(path, old))
		}
		return path
	}
	dangling := link("old.log", deleted, time.Hour)
	logless := link("logless.log", filepath.Join(dir, "ns_web_u1/a/0.log"), time.Hour)
	fresh := link("fresh.log", filepath.Join(dir, "ns_web_u1/b/0.log"), 0)
	good := link("web.log", stays, time.Hour)
	elsewhere := link("else.log", "/nowhere/at/all", time.Hour)
	// A kubelet, and another agent, have their logs there too. OW-1
	kubelets := write("kube-system_proxy_u9/a/0.log")
	anothers := write("ns_other_u9/a/0.log")
	target, err := filepath.Rel(links, filepath.Join(dir, "ns_web_u1/a/9.log"))
	require.NoError(t, err)
	relative := link("relative.log", target, time.Hour)
	orphan := link("orphan.log", filepath.Join(dir, "ns_finished_u7/a/0.log"), time.Hour)
	// What no log directory of a pod is named like, and a link to one.
	nameless, alias := write("_web_u9/a/0.log"), filepath.Join(dir, "ns_alias_u9")
	write("ns__u9/a/0.log")
	misnamed := link("misnamed.log", filepath.Join(dir, "ns__u9/a/9.log"), time.Hour)
	require.NoError(t, os.Symlink("ns_new_u3", alias))
	unlinked := link("kubelet.log", filepath.Join(dir, "kube-system_proxy_u9/a/1.log"), time.Hour)
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	for dir, id := range map[string]string{
		"ns_old_u9": "one", "ns_web_u1": "one", "ns_new_u3": "one", "ns_alive_u4": "one", "ns_other_u9": "two",
		"_web_u9": "one", "ns__u9": "one", "other": "one",
	} {
		require.NoError(t, owner.Mark(root, dir, id))
	}

	n := &node{pods: map[types.UID]*runtime.Pod{
		"u1": {UID: "u1", Namespace: "ns", Name: "web", Containers: []runtime.Container{ctr("a2", "a", "", 2, runtime.Exited, 1), ctr("a1", "a", "", 1, runtime.Exited, 2)}},
		"u4": {UID: "u4", Namespace: "ns", Name: "alive", Containers: []runtime.Container{ctr("x", "a", "", 0, runtime.Running, 1)}},
		"u5": {UID: "u5", Namespace: "..", Name: "..", Containers: []runtime.Container{ctr("e2", "../a", "", 2, runtime.Exited, 1), ctr("e1", "../a", "", 1, runtime.Exited, 2)}},
	}}
	c := collector(t, containergc.Config{
		Containers: n, LogsDir: dir, LinksDir: links, Owner: func() string { return "one" },
		PodState: podStates{"": containergc.PodDeleted, "u9": containergc.PodDeleted, "u8": containergc.PodDeleted, "u4": containergc.PodDeleted}.of,
	})
	result, err := c.Collect(t.Context())
	require.NoError(t, err)
	result.Duration = 0
	assert.Equal(t, containergc.Result{Containers: 2, LogDirs: 1, Links: 4}, result)
	for path, there := range map[string]bool{
		deleted: false, filepath.Dir(filepath.Dir(deleted)): false, dangling: false, stays: true, desired: true, foreign: true,
		alive: true, outside: true, fresh: true, good: true, elsewhere: true, logless: false,
		relative: false, orphan: false, nameless: true, filepath.Join(dir, "ns__u9/a/0.log"): true, alias: true,
		kubelets: true, anothers: true, unlinked: true, misnamed: true,
		filepath.Join(dir, "ns_web_u1/a/1.log"): false, filepath.Join(dir, "ns_web_u1/a/1.log.20260101-000000.gz"): false,
	} {
		_, err := os.Lstat(path)
		assert.Equal(t, there, err == nil, path)
	}
}

func TestCollector_Explain(t *testing.T) {
	n := crowded(3)
	c := collector(t, containergc.Config{Containers: n, PodState: podStates{}.of})
	plan, err := c.Explain(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"c0", "c1"}, ids(plan))
	assert.Empty(t, n.removed)
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := containergc.New(containergc.Config{RemovalInterval: -1})
	for _, want := range []string{"Config.Containers", "must not be negative"} {
		assert.ErrorContains(t, err, want)
	}
}
