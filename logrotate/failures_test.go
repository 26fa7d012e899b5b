//go:build linux

package logrotate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
)

// failingRuntime is a runtime whose calls fail as long as its errors are set.
type failingRuntime struct {
	*logFiles

	listErr   error
	reopenErr error
	reopenAt  []time.Time
	block     bool // ReopenLog returns when its context is done
	lazy      bool // ReopenLog creates no log
	ended     bool // no container runs
}

func (f *failingRuntime) Pods(ctx context.Context) ([]runtime.Pod, error) {
	pods, _ := f.logFiles.Pods(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return nil, nil
	}
	return pods, f.listErr
}

func (f *failingRuntime) ReopenLog(ctx context.Context, id string) error {
	f.mu.Lock()
	f.reopenAt = append(f.reopenAt, time.Now())
	block, lazy, err := f.block, f.lazy, f.reopenErr
	f.mu.Unlock()
	if block {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err != nil || lazy {
		return err
	}
	return f.logFiles.ReopenLog(ctx, id)
}

func (f *failingRuntime) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// pass sleeps, and waits until all that was due by then has been done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// run runs a Rotator until stop is called.
func run(t *testing.T, cfg Config) (stop func()) {
	t.Helper()
	r, err := New(cfg)
	require.NoError(t, err)
	r.freeBytes = func(string) uint64 { return 0 } // unknown: others write to the disk
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

// A list that fails changes nothing: known logs are still rotated, and the next list is
// used again.
func TestRotator_SurvivesListErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		rt := &failingRuntime{logFiles: newLogFiles(t, 2), listErr: errors.New("boom")}
		stop := run(t, Config{Runtime: rt, LogsDir: rt.dir, MaxSize: 1000, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		rt.write(t, 0, string(make([]byte, 2000)))
		pass(15 * time.Second)
		assert.Empty(t, rt.reopened(), "nothing is known yet")
		assert.Equal(t, 2, strings.Count(log.String(), `msg="listing pods for log rotation failed" err=boom`))
		rt.set(func() { rt.listErr = nil })
		pass(10 * time.Second)
		assert.Equal(t, []string{"0"}, rt.reopened())
		rt.set(func() { rt.listErr = errors.New("again") })
		pass(10 * time.Second)
		rt.write(t, 1, string(make([]byte, 2000)))
		pass(time.Second)
		assert.Equal(t, []string{"0", "1"}, rt.reopened())
		stop()
	})
}

// The end of the context is no failure, and a runtime that panics is one.
func TestRotator_LogsFailedLists(t *testing.T) {
	var log logtest.Buffer
	rt := &failingRuntime{logFiles: newLogFiles(t, 1), listErr: context.Canceled}
	r, err := New(Config{Runtime: rt, LogsDir: rt.dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.list(ctx)
	assert.Empty(t, log.String())
	r.cfg.Runtime = nil // its method panics
	r.list(t.Context())
	assert.Contains(t, log.String(), `msg="listing pods for log rotation failed"`)
}

// Containers are known by their ids: a new container with the log of another replaces it.
func TestRotator_List(t *testing.T) {
	c := newLogFiles(t, 3)
	l := newRotatorEnv(t, c, Config{})
	c.pods[0].Containers[0].ID = "new"
	c.pods[1].Containers[0].State = runtime.Exited
	c.pods = append(c.pods, runtime.Pod{Namespace: "ns", Name: "..", UID: "/", Containers: []runtime.Container{{ID: "evil", Name: "app", State: runtime.Running}}})
	l.list(t.Context())
	assert.Len(t, l.logs, 2)
	assert.Len(t, l.ids, 2)
	assert.Len(t, l.polled, 2)
	assert.Equal(t, "new", l.logs["ns_p0_u/app/0.log"].id)
	assert.NotNil(t, l.ids["2"])
}

// countedPods is a Runtime that counts the changes of its pods, and the lists.
type countedPods struct {
	*logFiles
	changes uint64
	lists   int
	err     error
}

func (c *countedPods) Changes() uint64 { return c.changes }

func (c *countedPods) Pods(ctx context.Context) ([]runtime.Pod, error) {
	c.lists++
	pods, err := c.logFiles.Pods(ctx)
	return pods, errors.Join(err, c.err)
}

// Pods that are the same are not listed again, but logs that are due are polled.
func TestRotator_ListsWhatHasChanged(t *testing.T) {
	c := &countedPods{logFiles: newLogFiles(t, 2), err: errors.New("boom")}
	l := newRotatorEnv(t, c.logFiles, Config{MaxSize: 1000})
	l.listed, l.cfg.Runtime = 0, c
	l.list(t.Context())
	c.err = nil
	l.list(t.Context())
	require.Equal(t, 2, c.lists, "the first list has failed")
	log := l.logs["ns_p1_u/app/0.log"]
	l.settle()
	for _, due := range []time.Duration{time.Minute, -time.Second} {
		log.due = time.Now().Add(due)
		l.rest(log)
		l.list(t.Context())
		_, polled := l.polled[log]
		assert.Equal(t, due < 0, polled)
	}
	assert.Equal(t, 2, c.lists)
	assert.Len(t, l.logs, 2)
	c.pods, c.changes = c.pods[:1], 7
	l.list(t.Context())
	assert.Equal(t, 3, c.lists)
	assert.Len(t, l.logs, 1)
}

// A rotation that fails is logged, reported and retried with a growing interval.
func TestRotator_RetriesWithBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		boom := errors.New("boom")
		rt := &failingRuntime{logFiles: newLogFiles(t, 1), reopenErr: boom}
		var reported []error
		stop := run(t, Config{Runtime: rt, LogsDir: rt.dir, MaxSize: 1000, Logger: slog.New(slog.NewTextHandler(&log, nil)), Hooks: Hooks{
			Rotated: func(id string, bytes int64, duration time.Duration, err error) {
				assert.Equal(t, "0", id)
				assert.EqualValues(t, 2006, bytes)
				assert.Zero(t, duration)
				reported = append(reported, err)
			},
		}})
		rt.write(t, 0, string(make([]byte, 2000)))
		pass(10 * time.Minute)
		require.Greater(t, len(rt.reopenAt), 12)
		for i, seconds := range []int{1, 4, 9, 16, 25, 36, 49, 60, 60, 60} {
			wait := time.Duration(seconds) * time.Second
			assert.Equal(t, wait, rt.reopenAt[i+1].Sub(rt.reopenAt[i]), "wait after attempt %d", i+1)
		}
		assert.Contains(t, log.String(), `msg="container log rotation failed" path=ns_p0_u/app/0.log err="reopen log ns_p0_u/app/0.log: boom"`)
		require.ErrorIs(t, reported[0], boom)

		rt.set(func() { rt.reopenErr = nil })
		pass(time.Minute)
		require.NoError(t, reported[len(reported)-1])
		assert.Equal(t, []string{"0"}, rt.reopened())
		rt.set(func() { rt.reopenErr, rt.reopenAt = boom, nil })
		rt.write(t, 0, string(make([]byte, 2006)))
		pass(3 * time.Second)
		require.Len(t, rt.reopenAt, 2, "the back-off has been reset")
		assert.Equal(t, time.Second, rt.reopenAt[1].Sub(rt.reopenAt[0]))
		stop()
	})
}

// The log of a container that has ended meanwhile is not rotated, and that is no failure to tell of.
func TestRotator_LeavesLogsOfEndedContainersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		rt := &failingRuntime{logFiles: newLogFiles(t, 1), reopenErr: errors.New("container is exited, not running")}
		stop := run(t, Config{Runtime: rt, LogsDir: rt.dir, MaxSize: 1000, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		rt.write(t, 0, string(make([]byte, 2000)))
		pass(600 * time.Millisecond)
		require.Len(t, rt.reopenAt, 1)
		rt.set(func() { rt.ended = true })
		pass(time.Minute)
		assert.Len(t, rt.reopenAt, 1)
		assert.Empty(t, log.String())
		assert.FileExists(t, rt.log(0), "it has its name back")
		stop()
	})
}

// CG-3: a log that was renamed by a previous process is reopened until that succeeds.
func TestRotator_RetriesReopening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		rt := &failingRuntime{logFiles: newLogFiles(t, 1), reopenErr: errors.New("boom")}
		require.NoError(t, os.Rename(rt.log(0), rt.log(0)+".20260101-000000.000000000"))
		stop := run(t, Config{Runtime: rt, LogsDir: rt.dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		pass(time.Minute)
		assert.Less(t, len(rt.reopenAt), 10, "with a growing interval")
		assert.Contains(t, log.String(), `msg="reopening container log failed" path=ns_p0_u/app/0.log err=boom`)
		rt.set(func() { rt.reopenErr = nil })
		pass(6 * time.Minute)
		assert.Equal(t, []string{"0"}, rt.reopened(), "once")
		assert.FileExists(t, rt.log(0))
		stop()
	})
}

// A runtime that does not answer is given up after the timeout, also when Run is ending:
// otherwise the runtime would go on writing to a renamed log.
func TestRotator_ReopenIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &failingRuntime{logFiles: newLogFiles(t, 1), block: true}
		var took time.Duration
		stop := run(t, Config{Runtime: rt, LogsDir: rt.dir, MaxSize: 1000, Timeout: time.Minute, Hooks: Hooks{
			Rotated: func(_ string, _ int64, duration time.Duration, err error) {
				took = duration
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			},
		}})
		rt.write(t, 0, string(make([]byte, 2000)))
		pass(10 * time.Second)
		assert.Len(t, rt.reopenAt, 1)
		startTime := time.Now()
		stop()
		assert.Equal(t, time.Minute, took)
		assert.Equal(t, time.Minute, time.Since(rt.reopenAt[0]))
		assert.Greater(t, time.Since(startTime), 49*time.Second, "Run waits for it")
		assert.FileExists(t, rt.log(0), "it has its name back")
	})
}

// Rotations run in parallel, as many as there are workers. The others follow.
func TestRotator_BoundsWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &failingRuntime{logFiles: newLogFiles(t, 5), block: true}
		for i := range 5 {
			rt.write(t, i, string(make([]byte, 2000)))
		}
		stop := run(t, Config{Runtime: rt, LogsDir: rt.dir, MaxSize: 1000, Timeout: time.Minute, MaxWorkers: 2})
		pass(30 * time.Second)
		rt.set(func() { assert.Len(t, rt.reopenAt, 2) })
		pass(31 * time.Second)
		rt.set(func() { assert.Len(t, rt.reopenAt, 4); rt.block = false })
		pass(2 * time.Minute)
		reopened := rt.reopened()
		slices.Sort(reopened)
		assert.Equal(t, []string{"0", "1", "2", "3", "4"}, reopened)
		stop()
	})
}

// A log whose size cannot be read is logged and read again, ever more rarely.
func TestRotator_LogsUnreadableLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		c := newLogFiles(t, 1)
		dir := filepath.Dir(c.log(0))
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, os.WriteFile(dir, nil, 0o600))
		stop := run(t, Config{Runtime: c, LogsDir: c.dir, MaxSize: 1000, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		pass(65 * time.Second)
		lines := strings.Count(log.String(), `msg="checking container log failed" path=ns_p0_u/app/0.log err=`)
		assert.InDelta(t, 11, lines, 1, "after 0.5, 1, 2, 4, 8 s, and each 10 s")
		require.NoError(t, os.Remove(dir))
		require.NoError(t, os.Mkdir(dir, 0o755))
		c.write(t, 0, string(make([]byte, 2000)))
		pass(time.Minute)
		assert.Equal(t, []string{"0"}, c.reopened())
		stop()
	})
}

// Rotated logs that cannot be cleaned up are logged, and kept.
func TestRotator_LogsFailedCleanups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		c := newLogFiles(t, 1)
		stuck := c.log(0) + ".20260101-000000.000000000"
		require.NoError(t, os.MkdirAll(filepath.Join(stuck, "full"), 0o755)) // a directory that is not empty
		for i := range 5 {
			require.NoError(t, os.WriteFile(c.log(0)+fmt.Sprintf(".2026010%d-000000.000000000", i+2), nil, 0o600))
		}
		stop := run(t, Config{Runtime: c, LogsDir: c.dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		pass(time.Second)
		stop()
		assert.Contains(t, log.String(), `msg="removing rotated logs failed" path=ns_p0_u/app/0.log err="remove rotated logs of ns_p0_u/app/0.log: `)
		assert.DirExists(t, stuck)
	})
}

// Requests for cleanups never block the loop that reads sizes.
func TestRotator_CleanupRequestsDoNotBlock(t *testing.T) {
	l := newRotatorEnv(t, newLogFiles(t, 1), Config{})
	for range 1000 {
		l.requestCleanup("ns_p0_u/app/0.log")
	}
	assert.Len(t, l.needsCleanup, cap(l.needsCleanup))
}

// Run creates the logs directory with the kubelet's mode, because log shippers read it.
func TestRotator_RunCreatesLogsDir(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "var", "log")
		var log logtest.Buffer
		run(t, Config{Runtime: &logFiles{}, LogsDir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})()
		assert.Empty(t, log.String())
		info, err := os.Stat(dir)
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o755), info.Mode().Perm())
	})
}

func TestRotator_RunReturnsErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	r, err := New(Config{Runtime: &logFiles{}, LogsDir: filepath.Join(file, "logs")})
	require.NoError(t, err)
	require.ErrorContains(t, r.Run(t.Context()), "create logs directory: ")
}

// AG-9: a hook that panics does not end a rotation, nor the next.
func TestRotator_SurvivesHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLogFiles(t, 1)
		stop := run(t, Config{Runtime: c, LogsDir: c.dir, MaxSize: 1000, Hooks: Hooks{
			Rotated: func(string, int64, time.Duration, error) { panic("hook") },
		}})
		for range 3 {
			c.write(t, 0, string(make([]byte, 2000)))
			pass(2 * time.Second)
		}
		stop()
		assert.Len(t, c.reopened(), 3)
		packed, err := filepath.Glob(c.log(0) + ".*" + compressed)
		require.NoError(t, err)
		assert.Len(t, packed, 2, "all but the newest are compressed")
	})
}

// A cleanup that ends with Run is no failure, and one that succeeds is not logged.
func TestRotator_LogsNoInterruptedCleanups(t *testing.T) {
	var log logtest.Buffer
	c := newLogFiles(t, 1)
	l := newRotatorEnv(t, c, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for i := range 2 {
		require.NoError(t, os.WriteFile(c.log(0)+fmt.Sprintf(".2026010%d-000000.000000000", i+1), []byte("x"), 0o600))
	}
	root := func() *logRoot { return &l.root }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 40 { // either case of its select may come first
		l.requestCleanup("ns_p0_u/app/0.log")
		l.runCleanup(ctx, root)
	}
	assert.Empty(t, log.String())

	ctx, cancel = context.WithCancel(t.Context())
	l.wg.Go(func() { l.runCleanup(ctx, root) })
	l.requestCleanup("ns_p0_u/app/0.log")
	require.Eventually(t, func() bool { return exists(c.log(0) + ".20260101-000000.000000000.gz") }, time.Minute, time.Millisecond)
	l.requestCleanup("ns_p0_u/app/0.log")
	require.Eventually(t, func() bool { return len(l.needsCleanup) == 0 }, time.Minute, time.Millisecond)
	cancel()
	l.wg.Wait()
	assert.Empty(t, log.String())
}
