package nodeshutdown_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/nodeshutdown"
	"github.com/sublet-dev/agent/podspec"
)

const second = time.Second

// start runs a Manager on the machine until the test ends.
func start(t *testing.T, m *machine, stateFile string, groups ...nodeshutdown.Group) *nodeshutdown.Manager {
	t.Helper()
	manager, err := nodeshutdown.New(nodeshutdown.Config{Groups: groups, Dial: m.dial, StateFile: stateFile, NodeName: "n", Logger: m.logger()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- manager.Runner(m, m).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
		assert.Zero(t, m.locks, "the lock is released at the end")
	})
	synctest.Wait()
	return manager
}

// SD-1, SD-2, ND-2: groups from the lowest priority to the highest; empty ones take no time.
func TestManager_TerminatesPodsByPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newPod("low", -5), newPod("plain", 0), newPod("plain-fast", 9), newPod("high", 100), newPod("critical", podspec.SystemCriticalPriority+1000))
		m.exitAfter["plain-fast"], m.exitAfter["high"] = second, 2*second
		manager := start(t, m, "", nodeshutdown.Group{Priority: podspec.SystemCriticalPriority, Period: 4 * second}, nodeshutdown.Group{Priority: 0, Period: 10 * second},
			nodeshutdown.Group{Priority: 50, Period: 5 * second}, nodeshutdown.Group{Priority: 5000, Period: 300 * second})
		require.NoError(t, manager.Check())
		assert.True(t, manager.Admit(newPod("new", 0), nil).Admitted)
		m.requireTrace(t, "0s locked for 5m29s")

		m.set(true)
		synctest.Wait()
		require.ErrorIs(t, manager.Check(), nodeshutdown.ErrShuttingDown)
		require.EqualError(t, manager.Check(), "node is shutting down")
		assert.Equal(t, podspec.Rejected("NodeShutdown", "Pod was rejected as the node is shutting down."), manager.Admit(newPod("new", 0), nil))

		time.Sleep(time.Hour)
		m.requireTrace(t, "0s event Node NodeShutdown: Shutdown manager detected shutdown event",
			"0s low: Terminated in 10s", "0s plain: Terminated in 10s", "0s plain-fast: Terminated in 10s", "1s plain-fast exited", "10s low exited", "10s plain exited",
			"10s high: Terminated in 5s", "12s high exited", // the group of 5000 has no pods, and takes no time
			"12s critical: Terminated in 4s", "16s critical exited", "16s released")
		require.Error(t, manager.Check(), "until the machine is down")
	})
}

// SD-2: a pod that does not terminate does not use the time of others.
func TestManager_GoesOnWhenAPeriodIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newPod("slow", 0), newPod("critical", podspec.SystemCriticalPriority))
		m.exitAfter["slow"] = time.Hour
		start(t, m, "", nodeshutdown.GracePeriods(5*second, 0)...)
		m.set(true)
		time.Sleep(time.Minute)
		m.requireTrace(t, "0s locked for 15s", "0s event Node NodeShutdown: Shutdown manager detected shutdown event", "0s slow: Terminated in 5s",
			"5s critical: Terminated in 1s", "6s critical exited",
			`15s level=WARN msg="pod has not terminated before the node shuts down" pod=default/slow podUID=slow err="still there 10s after all periods"`,
			"15s released")
	})
}

// SD-1, SD-3: after a cancelled shutdown the node takes pods again, and the next one is delayed too.
func TestManager_CancelledShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newPod("a", 0), newPod("b", podspec.SystemCriticalPriority))
		m.exitAfter["a"] = time.Hour
		manager := start(t, m, "", nodeshutdown.GracePeriods(30*second, 10*second)...)
		m.set(true)
		time.Sleep(5 * second)
		m.set(true) // reported twice
		m.set(false)
		synctest.Wait()
		require.NoError(t, manager.Check())
		assert.True(t, manager.Admit(newPod("new", 0), nil).Admitted)
		m.requireTrace(t, "0s locked for 40s", "0s event Node NodeShutdown: Shutdown manager detected shutdown event", "0s a: Terminated in 20s",
			`5s level=WARN msg="pod has not terminated before the node shuts down" pod=default/a podUID=a err="context canceled"`,
			"5s released", "5s event Node NodeShutdown: Shutdown manager detected shutdown cancellation", "5s locked for 40s")

		m.exitAfter["a"] = 0
		m.set(true) // and again
		time.Sleep(11 * second)
		m.requireTrace(t, "5s event Node NodeShutdown: Shutdown manager detected shutdown event", "5s a: Terminated in 20s", "5s a exited",
			"5s b: Terminated in 10s", "15s b exited", "15s released")
	})
}

func TestManager_Reconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newPod("a", 0))
		m.dialErr = errors.New("no bus")
		start(t, m, "", nodeshutdown.GracePeriods(30*second, 10*second)...)
		time.Sleep(8 * second) // attempts after 0, 1, 3 and 7 s
		m.requireTrace(t, `0s level=WARN msg="shutdown notification unavailable, retrying" err="connect to the login manager: no bus"`)
		m.mu.Lock()
		m.dialErr = nil
		m.mu.Unlock()
		time.Sleep(8 * second)
		m.requireTrace(t, "15s locked for 40s")
		close(m.changes)
		time.Sleep(40 * second)
		m.requireTrace(t, "16s released", "32s locked for 40s")
	})
}

// SD-4: a process that starts while the machine shuts down gets no lock, and terminates the pods in the time that there is.
func TestManager_ShutdownInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newPod("a", 0))
		m.down, m.lockErr = true, errors.New("in progress")
		m.exitAfter["a"] = second
		manager := start(t, m, "", nodeshutdown.GracePeriods(30*second, 10*second)...)
		require.Error(t, manager.Check())
		time.Sleep(2 * second)
		m.requireTrace(t, "0s event Node NodeShutdown: Shutdown manager detected shutdown event", "0s a: Terminated in 20s", "1s a exited")
	})
}

// SD-4: a lost connection does not end the termination, and the state is asked for again.
func TestManager_LosesConnectionDuringShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newPod("a", 0))
		manager := start(t, m, "", nodeshutdown.GracePeriods(30*second, 10*second)...)
		m.set(true)
		time.Sleep(second)
		close(m.changes)
		time.Sleep(18 * second)
		require.Error(t, manager.Check())
		m.requireTrace(t, "0s locked for 40s", "0s event Node NodeShutdown: Shutdown manager detected shutdown event", "0s a: Terminated in 20s")
		m.mu.Lock()
		m.down = false // cancelled unseen
		m.mu.Unlock()
		time.Sleep(10 * second)
		require.NoError(t, manager.Check())
		m.requireTrace(t, "20s a exited", "20s released", `20s level=WARN msg="shutdown notification unavailable, retrying" err="connection to the login manager lost"`,
			"21s event Node NodeShutdown: Shutdown manager detected shutdown cancellation", "21s locked for 40s")
	})
}

// What a process has recorded of a shutdown is logged by the next one. ND-2
func TestManager_RecordsShutdown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	boot := func(name string, uptime time.Duration, want ...string) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(newPod("a", 0))
				start(t, m, file, nodeshutdown.GracePeriods(30*second, 10*second)...)
				m.requireTrace(t, append(want, "0s locked for 40s")...)
				m.set(true)
				time.Sleep(uptime)
			})
		})
	}
	boot("first", 25*second)
	var state map[string]time.Time
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &state))
	assert.Equal(t, 20*second, state["endTime"].Sub(state["startTime"]))
	boot("after a graceful shutdown", 5*second)
	boot("after one that was cut short", 25*second, `0s level=WARN msg="previous node shutdown was cut short" startTime=2000-01-01T00:00:00.000Z`)
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	boot("with a damaged file", 25*second, `0s level=WARN msg="reading the record of the previous node shutdown failed" err="unexpected EOF"`)
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Symlink("/dev/zero", file))
	boot("with another file", second, `0s level=WARN msg="reading the record of the previous node shutdown failed" err="`+file+` is not a regular file"`)
}

// A shutdown that was cancelled is none that the next process reports, whether all pods had terminated or not.
func TestManager_ForgetsCancelledShutdown(t *testing.T) {
	for name, after := range map[string]time.Duration{"while pods terminate": 5 * second, "after pods have terminated": 25 * second} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "state.json")
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(newPod("a", 0))
				start(t, m, file, nodeshutdown.GracePeriods(30*second, 10*second)...)
				m.set(true)
				time.Sleep(after)
				assert.FileExists(t, file)
				m.set(false)
				synctest.Wait()
				assert.NoFileExists(t, file)
			})
			synctest.Test(t, func(t *testing.T) {
				m := newMachine()
				start(t, m, file, nodeshutdown.GracePeriods(30*second, 10*second)...)
				m.requireTrace(t, "0s locked for 40s")
			})
		})
	}
}

// A record that cannot be removed is logged.
func TestManager_CannotForget(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		start(t, m, file, nodeshutdown.GracePeriods(5*second, 0)...)
		m.set(true)
		synctest.Wait()
		require.NoError(t, os.Remove(file))
		require.NoError(t, os.MkdirAll(filepath.Join(file, "full"), 0o700))
		m.set(false)
		synctest.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		assert.Contains(t, strings.Join(m.trace, "\n"), `level=WARN msg="removing the record of a cancelled node shutdown failed"`)
	})
}

// SD-2: other periods hold from the next shutdown on, with a lock that is long enough; the machine is never without a lock.
func TestManager_SetGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newPod("a", 0))
		manager := start(t, m, "", nodeshutdown.GracePeriods(5*second, 0)...)
		require.ErrorContains(t, manager.SetGroups(nil), "Config.Groups required")
		require.ErrorContains(t, manager.SetGroups([]nodeshutdown.Group{{Period: -second}}), "must be in whole seconds")
		m.requireTrace(t, "0s locked for 15s")
		time.Sleep(second)
		require.NoError(t, manager.SetGroups(nodeshutdown.GracePeriods(9*second, 2*second)))
		synctest.Wait()
		m.requireTrace(t, "1s locked for 19s", "1s released")
		m.set(true)
		time.Sleep(time.Minute)
		m.requireTrace(t, "1s event Node NodeShutdown: Shutdown manager detected shutdown event", "1s a: Terminated in 7s", "8s a exited", "8s released")
	})
}

// Without a new lock, as in the moment in which a shutdown begins, the old one stays.
func TestManager_SetGroupsKeepsTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newPod("a", 0))
		manager := start(t, m, "", nodeshutdown.GracePeriods(5*second, 0)...)
		m.requireTrace(t, "0s locked for 15s")
		m.lockErr = errors.New("in progress")
		require.NoError(t, manager.SetGroups(nodeshutdown.GracePeriods(7*second, 0)))
		synctest.Wait()
		m.requireTrace(t, `0s level=WARN msg="shutdown lock not renewed, its period stays" err="delay shutdowns: in progress"`)
		m.set(true)
		time.Sleep(time.Minute)
		m.requireTrace(t, "0s event Node NodeShutdown: Shutdown manager detected shutdown event", "0s a: Terminated in 7s", "7s a exited", "7s released")
		m.lockErr = nil
	})
}

// SD-5: where the limit cannot be raised, pods are terminated in the time that there is. A longer lock is tried to be got with
// back-off, without a word.
func TestManager_ShortLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newPod("a", 0))
		m.setLimit(errors.New("read-only file system"))
		start(t, m, "", nodeshutdown.GracePeriods(5*second, 0)...)
		m.requireTrace(t, "0s locked for 15s",
			`0s level=WARN msg="shutdowns of the node are not delayed as long as pods may need" period=15s err="read-only file system"`)
		time.Sleep(100 * second)
		m.requireTrace(t, "30s locked for 15s", "30s released", "1m30s locked for 15s", "1m30s released")
		m.setLimit(nil)
		time.Sleep(time.Hour)
		m.requireTrace(t, "3m30s locked for 15s", "3m30s released")

		m.setLimit(errors.New("not followed"))
		m.exitAfter["a"] = second
		m.set(true)
		time.Sleep(2 * second)
		m.requireTrace(t, "1h1m40s event Node NodeShutdown: Shutdown manager detected shutdown event", "1h1m40s a: Terminated in 5s", "1h1m41s a exited", "1h1m41s released")
		m.set(false)
		synctest.Wait()
		m.requireTrace(t, "1h1m42s event Node NodeShutdown: Shutdown manager detected shutdown cancellation", "1h1m42s locked for 15s",
			`1h1m42s level=WARN msg="shutdowns of the node are not delayed as long as pods may need" period=15s err="not followed"`)
	})
}

// While there is no connection, the groups are changed for the lock to come.
func TestManager_SetGroupsBeforeTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.dialErr = errors.New("not there")
		manager := start(t, m, "", nodeshutdown.GracePeriods(5*second, 0)...)
		require.NoError(t, manager.SetGroups(nodeshutdown.GracePeriods(7*second, 0)))
		m.mu.Lock()
		m.dialErr = nil
		m.mu.Unlock()
		time.Sleep(time.Minute)
		m.requireTrace(t, `0s level=WARN msg="shutdown notification unavailable, retrying" err="connect to the login manager: not there"`, "1s locked for 17s")
	})
}

// After a connection that held, the next failure is logged again, and is retried at once.
func TestManager_LosesGoodConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		start(t, m, "", nodeshutdown.GracePeriods(5*second, 0)...)
		for _, want := range [][]string{
			{"0s locked for 15s", "31s released", `31s level=WARN msg="shutdown notification unavailable, retrying" err="connection to the login manager lost"`, "32s locked for 15s"},
			{"1m3s released", `1m3s level=WARN msg="shutdown notification unavailable, retrying" err="connection to the login manager lost"`, "1m4s locked for 15s"},
		} {
			time.Sleep(30*second + second)
			m.mu.Lock()
			close(m.changes)
			m.mu.Unlock()
			time.Sleep(second)
			synctest.Wait()
			m.requireTrace(t, want...)
		}
	})
}

// Without a recorder, a name for events, a logger or a place for the record, pods are terminated all the same. The caller's
// groups stay in their order.
func TestManager_WithoutTheRest(t *testing.T) {
	for name, tc := range map[string]struct {
		recorder nodeshutdown.Recorder
		nodeName string
	}{"no recorder": {nil, "n"}, "no name": {newMachine(), ""}} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(newPod("a", 0))
			groups := []nodeshutdown.Group{{Priority: 5, Period: second}, {Priority: 0, Period: 2 * second}}
			manager, err := nodeshutdown.New(nodeshutdown.Config{Groups: groups, Dial: m.dial, NodeName: tc.nodeName, StateFile: filepath.Join(t.TempDir(), "missing", "state")})
			require.NoError(t, err)
			assert.Equal(t, int32(5), groups[0].Priority)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- manager.Runner(m, tc.recorder).Run(ctx) }()
			synctest.Wait()
			m.set(true)
			time.Sleep(10 * second)
			m.requireTrace(t, "0s locked for 13s", "0s a: Terminated in 2s", "2s a exited", "2s released")
			cancel()
			require.NoError(t, <-done)
		})
		if other, ok := tc.recorder.(*machine); ok {
			assert.Empty(t, other.trace, name)
		}
	}
}

// A record that cannot be written is logged.
func TestManager_CannotRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "missing", "state")
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		start(t, m, file, nodeshutdown.GracePeriods(5*second, 0)...)
		m.requireTrace(t, "0s locked for 15s")
		m.set(true)
		synctest.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		assert.Contains(t, strings.Join(m.trace, "\n"), `level=WARN msg="recording the node shutdown failed"`)
	})
}
