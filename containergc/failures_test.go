package containergc_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

// The limits of a configuration are inclusive, and each is checked for itself.
func TestNew_ChecksLimits(t *testing.T) {
	valid := func() containergc.Config {
		return containergc.Config{Containers: &node{}, PodState: podStates{}.of}
	}
	for name, tt := range map[string]struct {
		change func(*containergc.Config)
		want   string
	}{
		"valid":                         {func(*containergc.Config) {}, ""},
		"no runtime":                    {func(c *containergc.Config) { c.Containers = nil }, "Containers and PodState required"},
		"no pod states":                 {func(c *containergc.Config) { c.PodState = nil }, "Containers and PodState required"},
		"keeps until replaced":          {func(c *containergc.Config) { c.Policy.MaxPerPodContainer = containergc.KeepUntilReplaced }, ""},
		"beyond keep until replaced":    {func(c *containergc.Config) { c.Policy.MaxPerPodContainer = -3 }, "invalid MaxPerPodContainer -3"},
		"negative minimum age":          {func(c *containergc.Config) { c.Policy.MinAge = -1 }, "must not be negative"},
		"negative number of containers": {func(c *containergc.Config) { c.Policy.MaxContainers = -1 }, "must not be negative"},
		"negative period":               {func(c *containergc.Config) { c.Period = -1 }, "must not be negative"},
		"negative request delay":        {func(c *containergc.Config) { c.RequestDelay = -1 }, "must not be negative"},
		"negative removal interval":     {func(c *containergc.Config) { c.RemovalInterval = -1 }, "must not be negative"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := valid()
			tt.change(&cfg)
			c, err := containergc.New(cfg)
			if tt.want == "" {
				require.NoError(t, err)
				require.NotNil(t, c)
				return
			}
			require.ErrorContains(t, err, tt.want)
			require.Nil(t, c)
		})
	}
}

// unlistable is a runtime whose list of pods fails.
type unlistable struct {
	*node

	err error
}

func (u *unlistable) Pods(ctx context.Context) ([]runtime.Pod, error) {
	pods, _ := u.node.Pods(ctx)
	return pods, u.err
}

// Without a list nothing is removed, and every caller learns why.
func TestCollector_ReturnsListErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		rt := &unlistable{node: crowded(3), err: boom}
		var reported []error
		var log logtest.Buffer
		c := collector(t, containergc.Config{
			Containers: rt, PodState: podStates{}.of, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Hooks: containergc.Hooks{Collected: func(r containergc.Result, err error) {
				assert.Zero(t, r.Containers)
				reported = append(reported, err)
			}},
		})
		_, err := c.Collect(t.Context())
		require.ErrorIs(t, err, boom)
		require.ErrorContains(t, err, "list pods: ")
		require.ErrorIs(t, c.Reclaim(t.Context()), boom)
		_, err = c.Explain(t.Context())
		require.ErrorIs(t, err, boom)
		require.ErrorContains(t, err, "list pods: ")
		require.Len(t, reported, 2)
		require.ErrorIs(t, reported[0], boom)
		assert.Empty(t, rt.removed)

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(90 * time.Second)
		assert.Contains(t, log.String(), `msg="container garbage collection failed" err="list pods: boom"`)
		log.Reset()
		cancel()
		require.NoError(t, <-done)
		go func() { done <- c.Run(ctx) }()
		c.RequestCollection()
		require.NoError(t, <-done)
		assert.Empty(t, log.String(), "the end of the context is no failure")
	})
}

// slowRuntime takes a second for each removal.
type slowRuntime struct{ *node }

func (s slowRuntime) RemoveContainer(ctx context.Context, id string) error {
	select {
	case <-time.After(time.Second):
		return s.node.RemoveContainer(ctx, id)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A collection ends with its context, whatever it is waiting for.
func TestCollector_StopsWhenContextIsDone(t *testing.T) {
	stop := errors.New("stop")
	t.Run("during a removal", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := crowded(10)
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(1500*time.Millisecond, func() { cancel(stop) })
			_, err := collector(t, containergc.Config{Containers: slowRuntime{n}, PodState: podStates{}.of}).Collect(ctx)
			require.ErrorIs(t, err, stop)
			assert.Equal(t, []string{"c0"}, n.removed)
		})
	})
	t.Run("between two removals", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := crowded(10)
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Minute+time.Second, func() { cancel(stop) })
			startTime := time.Now()
			_, err := collector(t, containergc.Config{Containers: n, PodState: podStates{}.of, RemovalInterval: time.Minute}).Collect(ctx)
			require.ErrorIs(t, err, stop)
			assert.Equal(t, []string{"c0", "c1"}, n.removed)
			assert.Equal(t, time.Minute+time.Second, time.Since(startTime))
		})
	})
	t.Run("without pauses", func(t *testing.T) {
		n := crowded(10)
		ctx, cancel := context.WithCancelCause(t.Context())
		c := collector(t, containergc.Config{Containers: n, PodState: podStates{}.of, Hooks: containergc.Hooks{
			Removed: func(containergc.Removal, time.Duration, error) { cancel(stop) },
		}})
		require.ErrorIs(t, c.Reclaim(ctx), stop)
		assert.Equal(t, []string{"c0"}, n.removed)
	})
	t.Run("in Run, without a word", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log logtest.Buffer
			n := crowded(10)
			c := collector(t, containergc.Config{Containers: slowRuntime{n}, PodState: podStates{}.of, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute+1500*time.Millisecond)
			defer cancel()
			require.NoError(t, c.Run(ctx))
			assert.Equal(t, []string{"c0"}, n.removed)
			assert.NotContains(t, log.String(), "failed")
			c = collector(t, containergc.Config{Containers: &node{}, PodState: podStates{}.of, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			require.NoError(t, c.Run(ctx))
			assert.NotContains(t, log.String(), "failed", "nor is a success a failure")
		})
	})
	t.Run("while another collection runs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := crowded(10)
			c := collector(t, containergc.Config{Containers: slowRuntime{n}, PodState: podStates{}.of})
			done := make(chan error)
			go func() { done <- c.Reclaim(t.Context()) }()
			synctest.Wait()
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(stop) })
			result, err := c.Collect(ctx)
			require.ErrorIs(t, err, stop)
			assert.Zero(t, result)
			require.NoError(t, <-done)
		})
	})
	t.Run("after a request", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := crowded(10)
			c := collector(t, containergc.Config{Containers: n, PodState: podStates{}.of, RequestDelay: time.Hour})
			ctx, cancel := context.WithCancel(t.Context())
			c.RequestCollection()
			time.AfterFunc(time.Minute, cancel)
			startTime := time.Now()
			require.NoError(t, c.Run(ctx))
			assert.Equal(t, time.Minute, time.Since(startTime))
			assert.Empty(t, n.removed)
		})
	})
}

// What was removed is logged in one line; a collection without removals is not.
func TestCollector_LogsResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		n := crowded(3)
		n.pods["u1"].Sandboxes[0].State = runtime.SandboxNotReady
		c := collector(t, containergc.Config{
			Containers: n, PodState: podStates{"u1": containergc.PodDeleted}.of, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		result, err := c.Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, containergc.Result{Containers: 3, Sandboxes: 1, Duration: 60 * time.Millisecond}, result)
		assert.Contains(t, log.String(), `msg="container garbage collection done" containers=3 sandboxes=1 logDirs=0 links=0 duration=60ms`)
		log.Reset()
		_, err = c.Collect(t.Context())
		require.NoError(t, err)
		assert.Empty(t, log.String())
	})
}

// The hook gets the time that the runtime took.
func TestCollector_MeasuresRemovals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var durations []time.Duration
		c := collector(t, containergc.Config{Containers: slowRuntime{crowded(2)}, PodState: podStates{}.of, Hooks: containergc.Hooks{
			Removed: func(_ containergc.Removal, d time.Duration, _ error) { durations = append(durations, d) },
		}})
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []time.Duration{time.Second}, durations)
	})
}

// A sandbox that cannot be removed is an error, and does not count.
func TestCollector_ReturnsSandboxErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := crowded(1)
		n.pods["u1"].Sandboxes[0].State = runtime.SandboxNotReady
		boom := errors.New("boom")
		n.fail[n.pods["u1"].Sandboxes[0].ID] = boom
		result, err := collector(t, containergc.Config{Containers: n, PodState: podStates{"u1": containergc.PodDeleted}.of}).Collect(t.Context())
		require.ErrorIs(t, err, boom)
		require.ErrorContains(t, err, "remove sandbox ")
		assert.Equal(t, 1, result.Containers)
		assert.Zero(t, result.Sandboxes)
	})
}

// logsNode is a node with a marked log directory of a deleted pod, ns_old_u9, and a link
// to its log.
type logsNode struct {
	dir, links, podDir, link string

	cfg containergc.Config
}

func newLogsNode(t *testing.T) *logsNode {
	n := &logsNode{dir: filepath.Join(t.TempDir(), "pods"), links: filepath.Join(t.TempDir(), "containers")}
	n.podDir, n.link = filepath.Join(n.dir, "ns_old_u9"), filepath.Join(n.links, "old.log")
	log := filepath.Join(n.podDir, "app", "0.log")
	require.NoError(t, os.MkdirAll(filepath.Dir(log), 0o755))
	require.NoError(t, os.WriteFile(log, []byte("x"), 0o600))
	require.NoError(t, os.Mkdir(n.links, 0o755))
	require.NoError(t, os.Symlink(log, n.link))
	root, err := os.OpenRoot(n.dir)
	require.NoError(t, err)
	require.NoError(t, errors.Join(owner.Mark(root, "ns_old_u9", "one"), root.Close()))
	n.cfg = containergc.Config{
		Containers: &node{}, LogsDir: n.dir, LinksDir: n.links, Owner: func() string { return "one" },
		PodState: podStates{"u9": containergc.PodDeleted}.of,
	}
	return n
}

func (n *logsNode) collect(t *testing.T) (containergc.Result, error) {
	t.Helper()
	result, err := collector(t, n.cfg).Collect(t.Context())
	result.Duration = 0
	return result, err
}

// CG-1: what is missing is no error; what cannot be read or removed is one, and is kept
// for the next collection.
func TestCollector_LogDirectoryErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*testing.T, *logsNode)
		want   containergc.Result
		err    string
	}{
		"all is removed":         {func(*testing.T, *logsNode) {}, containergc.Result{LogDirs: 1, Links: 1}, ""},
		"no logs directory":      {func(t *testing.T, n *logsNode) { require.NoError(t, os.RemoveAll(n.dir)) }, containergc.Result{}, ""},
		"no links directory":     {func(t *testing.T, n *logsNode) { require.NoError(t, os.RemoveAll(n.links)) }, containergc.Result{LogDirs: 1}, ""},
		"links are not asked of": {func(_ *testing.T, n *logsNode) { n.cfg.LinksDir = "" }, containergc.Result{LogDirs: 1}, ""},
		"logs are not asked of":  {func(_ *testing.T, n *logsNode) { n.cfg.LogsDir = "" }, containergc.Result{}, ""},
		"no owner":               {func(_ *testing.T, n *logsNode) { n.cfg.Owner = nil }, containergc.Result{}, ""},
		"another owner":          {func(_ *testing.T, n *logsNode) { n.cfg.Owner = func() string { return "two" } }, containergc.Result{}, ""},
		"the logs directory is a file": {func(t *testing.T, n *logsNode) {
			require.NoError(t, os.RemoveAll(n.dir))
			require.NoError(t, os.WriteFile(n.dir, nil, 0o600))
		}, containergc.Result{}, "open logs directory"},
		"the links directory is a file": {func(t *testing.T, n *logsNode) {
			require.NoError(t, os.RemoveAll(n.links))
			require.NoError(t, os.WriteFile(n.links, nil, 0o600))
		}, containergc.Result{LogDirs: 1}, "not a directory"},
		"a log that is in use as a mount": {func(t *testing.T, n *logsNode) {
			mountOver(t, filepath.Join(n.podDir, "app"))
		}, containergc.Result{Links: 1}, "remove log directory ns_old_u9"},
		"a links directory that is read-only": {func(t *testing.T, n *logsNode) {
			bindReadOnly(t, n.links)
		}, containergc.Result{LogDirs: 1}, "remove link: "},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLogsNode(t)
			tt.change(t, n)
			result, err := n.collect(t)
			assert.Equal(t, tt.want, result)
			if tt.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.err)
			}
			if tt.want.LogDirs > 0 {
				assert.NoDirExists(t, n.podDir)
			}
		})
	}
}

// A directory that cannot be removed keeps its mark, so that a later collection knows
// whose it is. What is mounted in it stays as it is.
func TestCollector_KeepsMarkOfWhatStays(t *testing.T) {
	n := newLogsNode(t)
	mountOver(t, filepath.Join(n.podDir, "app"))
	precious := filepath.Join(n.podDir, "app", "precious")
	require.NoError(t, os.WriteFile(precious, nil, 0o600))
	_, err := n.collect(t)
	require.Error(t, err)
	require.FileExists(t, precious)
	require.NoError(t, unix.Unmount(filepath.Join(n.podDir, "app"), 0))
	result, err := n.collect(t)
	require.NoError(t, err)
	assert.Equal(t, 1, result.LogDirs)
}

// The directory of a container's log that cannot be read does not keep its container.
func TestCollector_RemovesContainerWithUnreadableLogs(t *testing.T) {
	for name, want := range map[string]string{"a file": "not a directory", "missing": ""} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if want != "" {
				require.NoError(t, os.Mkdir(filepath.Join(dir, "ns_web_u1"), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "ns_web_u1", "a"), nil, 0o600))
			}
			n := crowded(2)
			_, err := collector(t, containergc.Config{Containers: n, LogsDir: dir, PodState: podStates{}.of}).Collect(t.Context())
			assert.Equal(t, []string{"c0"}, n.removed)
			if want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, want)
			}
		})
	}
}
