//go:build linux

package logrotate

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/logtest"
)

// CG-3: the log of a running container that is deleted is reopened, idle or not, as often as that
// happens. Otherwise the runtime would write to a file without a name, which cannot be read and
// whose size nothing bounds.
func TestRotator_ReopensDeletedLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &failingRuntime{logFiles: newLogFiles(t, 2)}
		stop := run(t, Config{Runtime: rt, LogsDir: rt.dir, MaxSize: 1000})
		for i, idle := range []time.Duration{time.Minute, 600 * time.Millisecond} {
			pass(idle)
			require.NoError(t, os.Remove(rt.log(0)))
			pass(10 * time.Second)
			assert.Len(t, rt.reopened(), i, "a container may have ended")
			pass(time.Second)
			assert.Len(t, rt.reopened(), i+1)
			assert.FileExists(t, rt.log(0))
		}
		pass(10 * time.Minute)
		assert.Equal(t, []string{"0", "0"}, rt.reopened(), "once each")
		rt.write(t, 0, string(make([]byte, 2000)))
		pass(time.Second)
		assert.Equal(t, []string{"0", "0", "0"}, rt.reopened(), "its size counts")
		stop()
	})
}

// directoryMaker is a runtime that makes the directory of a log, as containerd does.
type directoryMaker struct{ *logFiles }

func (d directoryMaker) ReopenLog(ctx context.Context, id string) error {
	i, err := strconv.Atoi(id)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(d.log(i)), 0o755), d.logFiles.ReopenLog(ctx, id))
}

// CG-3: so are logs that were deleted with the whole logs directory, or over which something was mounted. The new ones are rotated.
func TestRotator_FollowsTheLogsDirectory(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, dir string) error{
		"removed":    func(_ *testing.T, dir string) error { return os.RemoveAll(dir) },
		"made again": func(_ *testing.T, dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)) },
		"mounted over": func(t *testing.T, dir string) error {
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
				t.Skip("needs root: ", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newLogFiles(t, 2)
			synctest.Test(t, func(t *testing.T) {
				var log logtest.Buffer
				stop := run(t, Config{Runtime: directoryMaker{c}, LogsDir: c.dir, MaxSize: 1000, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				pass(time.Minute)
				require.NoError(t, replace(t, c.dir))
				pass(time.Minute)
				assert.ElementsMatch(t, []string{"0", "1"}, c.reopened())
				c.write(t, 0, string(make([]byte, 2000)))
				pass(time.Minute)
				rotated, err := filepath.Glob(c.log(0) + ".*")
				require.NoError(t, err)
				assert.Len(t, rotated, 1)
				assert.Empty(t, log.String())
				stop()
			})
		})
	}
}

// A runtime that writes no logs is not asked to reopen them.
func TestRotator_IgnoresLogsThatNeverExisted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &failingRuntime{logFiles: newLogFiles(t, 1)}
		require.NoError(t, os.Remove(rt.log(0)))
		stop := run(t, Config{Runtime: rt, LogsDir: rt.dir})
		pass(time.Hour)
		assert.Empty(t, rt.reopenAt)
		stop()
	})
}

// A log that the runtime creates late, or that is removed with its container, needs nothing.
func TestRotator_IgnoresLogsOfNewAndEndedContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		rt := &failingRuntime{logFiles: newLogFiles(t, 1)}
		require.NoError(t, os.Remove(rt.log(0)))
		stop := run(t, Config{Runtime: rt, LogsDir: rt.dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		pass(5 * time.Second)
		rt.write(t, 0, "late\n")
		pass(time.Minute)
		require.NoError(t, os.RemoveAll(filepath.Dir(rt.log(0))))
		rt.set(func() { rt.ended = true })
		pass(10 * time.Minute)
		stop()
		assert.Empty(t, rt.reopenAt)
		assert.Empty(t, log.String())
	})
}

// A runtime that does not create the log, with an error or without one, is asked ever more rarely.
func TestRotator_BacksOffFromMissingLogs(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		lazy bool
		text string
	}{
		"error":   {err: errors.New("boom"), text: "err=boom"},
		"nothing": {lazy: true, text: `err="log does not exist"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logtest.Buffer
				rt := &failingRuntime{logFiles: newLogFiles(t, 1), reopenErr: tt.err, lazy: tt.lazy}
				stop := run(t, Config{Runtime: rt, LogsDir: rt.dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				pass(time.Second)
				require.NoError(t, os.Remove(rt.log(0)))
				pass(10 * time.Minute)
				require.Greater(t, len(rt.reopenAt), 10)
				for i, seconds := range []int{1, 4, 9, 16, 25, 36, 49, 60, 60} {
					wait := time.Duration(seconds) * time.Second
					assert.InDelta(t, wait, rt.reopenAt[i+1].Sub(rt.reopenAt[i]), float64(10*time.Second), "wait after attempt %d", i+1)
					assert.GreaterOrEqual(t, rt.reopenAt[i+1].Sub(rt.reopenAt[i]), wait)
				}
				assert.Equal(t, len(rt.reopenAt), strings.Count(log.String(), `msg="reopening container log failed" path=ns_p0_u/app/0.log `+tt.text))
				rt.set(func() { rt.reopenErr, rt.lazy = nil, false })
				pass(2 * time.Minute)
				assert.Equal(t, []string{"0"}, rt.reopened())
				stop()
			})
		})
	}
}

// A log that does not exist is polled at growing intervals until it is reopened. One that waits for
// longer than the interval between lists rests until one of these.
func TestRotator_PollsMissingLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLogFiles(t, 1)
		l := newRotatorEnv(t, c, Config{MaxSize: 1000, SizePollInterval: time.Second, MonitorInterval: 4 * time.Second})
		require.NoError(t, os.Remove(c.log(0)))
		lg := l.logs["ns_p0_u/app/0.log"]
		lg.existed = true
		began := time.Now()
		for _, seconds := range []int{1, 3, 4} {
			l.step()
			assert.True(t, lg.missing)
			assert.Equal(t, time.Duration(seconds)*time.Second, lg.due.Sub(began))
			assert.Len(t, l.polled, 1, "until %d s", seconds)
			time.Sleep(time.Until(lg.due))
		}
		assert.Empty(t, c.reopened())
		l.step()
		assert.Equal(t, []string{"0"}, c.reopened())
		assert.Len(t, l.polled, 1, "it is polled while it is reopened")
		time.Sleep(minPollInterval)
		l.step()
		assert.False(t, lg.missing)
		assert.Equal(t, time.Second, lg.wait, "it is a new log")
		assert.Len(t, l.polled, 1, "it is not idle yet")

		require.NoError(t, os.Rename(c.log(0), c.log(0)+".20260101-000000.000000000"))
		time.Sleep(time.Second)
		l.step()
		assert.Equal(t, []string{"0", "0"}, c.reopened(), "at once")

		require.NoError(t, os.Remove(c.log(0)))
		lg.missing, lg.retryAt = true, time.Now().Add(5*time.Second)
		time.Sleep(minPollInterval)
		l.step()
		assert.Empty(t, l.polled)
		time.Sleep(time.Until(lg.retryAt) - 1)
		l.list(t.Context())
		assert.Empty(t, l.polled, "it is not due")
		time.Sleep(time.Nanosecond)
		l.list(t.Context())
		l.step()
		assert.Equal(t, []string{"0", "0", "0"}, c.reopened())
	})
}
