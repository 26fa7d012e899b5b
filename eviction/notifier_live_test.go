//go:build linux

package eviction_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/runtime"
)

// watch runs a notifier until the test ends, and returns a channel of its notifications.
func watch(t *testing.T, n eviction.ThresholdNotifier) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	notified, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		done <- n.Watch(ctx, func() { notify.Send(notified) })
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return notified
}

// requireNotified waits for a notification.
func requireNotified(t *testing.T, notified <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-notified:
	case <-time.After(time.Minute):
		t.Fatal(what)
	}
}

// awaitPolls waits until so many notifiers of this process wait for the kernel: they miss nothing any more.
func awaitPolls(t *testing.T, count int) {
	t.Helper()
	require.Eventually(t, func() bool {
		stacks := make([]byte, 1<<20)
		polls := 0
		for g := range strings.SplitSeq(string(stacks[:goruntime.Stack(stacks, true)]), "\n\n") {
			state, calls, _ := strings.Cut(g, "\n")
			if strings.Contains(state, "[syscall") && strings.Contains(calls, "/eviction.poll(") {
				polls++
			}
		}
		return polls == count
	}, time.Minute, time.Millisecond)
}

// groupV2 creates a cgroup in the v2 hierarchy, which some machines have besides v1,
// with fewer controllers.
func groupV2(t *testing.T, name string) string {
	t.Helper()
	for _, root := range []string{cgroupRoot, cgroupRoot + "/unified"} {
		if _, err := os.Stat(root + "/cgroup.controllers"); err != nil || os.Getuid() != 0 {
			continue
		}
		dir := filepath.Join(root, uniqueCgroup(name))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		t.Cleanup(func() {
			assert.Eventually(t, func() bool { err := os.Remove(dir); return err == nil || os.IsNotExist(err) }, time.Minute, 10*time.Millisecond)
		})
		return dir
	}
	t.Skip("needs root and a cgroup v2 hierarchy")
	return ""
}

// EV-10: the kernel notifies of each change of an events file. The test uses
// cgroup.events, because v2 has no memory controller on some machines; the kernel
// notifies of its changes in the same way as of those of memory.events.
func TestMemoryEventsNotifier_NotifiesOfEachChange(t *testing.T) {
	dir := groupV2(t, "evictionevents")
	path := filepath.Join(dir, "cgroup.events")
	notified := watch(t, eviction.MemoryEventsNotifier{Path: path})
	awaitPolls(t, 1)
	for range 3 {
		cmd := exec.Command("sleep", "60")
		require.NoError(t, cmd.Start())
		require.NoError(t, os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0o600))
		requireNotified(t, notified, "the cgroup has a process")
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		requireNotified(t, notified, "the cgroup is empty again")
	}
}

// EV-10: the kernel also notifies of what changes while the change before is passed on.
func TestMemoryEventsNotifier_NotifiesOfAChangeMeanwhile(t *testing.T) {
	dir := groupV2(t, "evictionmeanwhile")
	n := eviction.MemoryEventsNotifier{Path: filepath.Join(dir, "cgroup.events")}
	other := watch(t, n)
	cmd := exec.Command("sleep", "60")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	ctx, cancel := context.WithCancel(t.Context())
	notified, done := make(chan struct{}, 2), make(chan error, 1)
	empty := sync.OnceFunc(func() {
		<-other // of the process
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		<-other // the kernel has reported its end to all
	})
	go func() {
		done <- n.Watch(ctx, func() {
			empty()
			notify.Send(notified)
		})
	}()
	awaitPolls(t, 2)
	require.NoError(t, os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0o600))
	requireNotified(t, notified, "the cgroup has a process")
	requireNotified(t, notified, "the cgroup is empty again")
	cancel()
	require.NoError(t, <-done)
}

// EV-10: Watch on the pressure of a cgroup that is removed returns an error, and
// does not notify indefinitely.
func TestPSINotifier_EndsWhenCgroupIsRemoved(t *testing.T) {
	dir := groupV2(t, "evictionremoved")
	path := filepath.Join(dir, "memory.pressure")
	if _, err := os.Stat(path); err != nil {
		t.Skip("needs pressure stall information")
	}
	var notified atomic.Int64
	done := make(chan error, 1)
	go func() {
		done <- eviction.PSINotifier{Path: path, Window: 2 * time.Second}.Watch(t.Context(), func() { notified.Add(1) })
	}()
	awaitPolls(t, 1)
	require.NoError(t, os.Remove(dir))
	select {
	case err := <-done:
		require.ErrorContains(t, err, "removed")
	case <-time.After(time.Minute):
		t.Fatal("Watch does not return")
	}
	assert.LessOrEqual(t, notified.Load(), int64(1))
}

// EV-10: processes that wait for memory, because their page cache is evicted again
// and again, cause notifications on the pressure file of their cgroup and on the
// machine's.
func TestPSINotifier_NotifiesOfMemoryStall(t *testing.T) {
	if _, err := os.Stat(cgroupRoot + "/memory/cgroup.event_control"); err != nil {
		t.Skip("limits memory by cgroup v1")
	}
	dir := groupV2(t, "evictionpsi")
	if _, err := os.Stat(dir + "/memory.pressure"); err != nil {
		t.Skip("needs pressure stall information")
	}
	limited := filepath.Join(cgroupRoot, "memory", uniqueCgroup("evictionpsi"))
	require.NoError(t, os.MkdirAll(limited, 0o755))
	t.Cleanup(func() {
		assert.Eventually(t, func() bool { return os.Remove(limited) == nil }, time.Minute, 10*time.Millisecond)
	})
	require.NoError(t, os.WriteFile(limited+"/memory.limit_in_bytes", []byte("8388608"), 0o600))
	file := filepath.Join(t.TempDir(), "file")
	data := make([]byte, 32<<20)
	for i := range data {
		data[i] = byte(i)
	}
	require.NoError(t, os.WriteFile(file, data, 0o600))
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Fsync(int(f.Fd())))
	require.NoError(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)) // otherwise reads are served from the page cache of this process

	quick := eviction.PSINotifier{Stall: time.Millisecond, Window: 500 * time.Millisecond}
	group, machine := quick, quick
	group.Path, machine.Path = dir+"/memory.pressure", "/proc/pressure/memory"
	ofGroup, ofMachine := watch(t, group), watch(t, machine)
	script := fmt.Sprintf("echo $$ > %s/cgroup.procs; echo $$ > %s/cgroup.procs; while :; do cat %s > /dev/null; done", limited, dir, file)
	cmd := exec.Command("sh", "-c", script)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	requireNotified(t, ofGroup, "no notification of the cgroup's stall: "+pressureOf(group.Path))
	requireNotified(t, ofMachine, "no notification of the machine's stall: "+pressureOf(machine.Path))
}

func pressureOf(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// EV-10: the notifier of the cgroup of all pods registers its threshold when the
// cgroup is created and when it is created again, and does not notify of one that
// was removed.
func TestMemoryThresholdNotifier_FollowsCgroup(t *testing.T) {
	if _, err := os.Stat(cgroupRoot + "/memory/cgroup.event_control"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and cgroup v1")
	}
	const limit, left = 100 * mib, 70 * mib
	group := uniqueCgroup("evictionallpods")
	dir := cgroupRoot + "/memory" + group
	name := ""
	n, err := eviction.NewMemoryThresholdNotifier(cgroupRoot+"/memory", func() string { return name }, eviction.AllocatableMemoryAvailable)
	require.NoError(t, err)
	thresholds, err := eviction.ParseThresholds("allocatableMemory.available<70Mi", "", "", "")
	require.NoError(t, err)
	notified := watch(t, n)
	requireNotified(t, notified, "it requests a measurement first")
	empty := &runtime.NodeUsage{PodsMemory: runtime.MemoryUsage{At: time.Now(), Capacity: limit}}

	require.Empty(t, n.UpdateThresholds(empty, thresholds), "the path is unknown")
	name = group
	require.Empty(t, n.UpdateThresholds(empty, thresholds), "the cgroup does not exist")
	for round := range 2 {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		t.Cleanup(func() { _ = os.Remove(dir) })
		require.NoError(t, os.WriteFile(dir+"/memory.limit_in_bytes", []byte(strconv.Itoa(limit)), 0o600))
		require.Equal(t, eviction.AllocatableMemoryAvailable, n.UpdateThresholds(empty, thresholds), "round %d", round)
		require.Equal(t, eviction.AllocatableMemoryAvailable, n.UpdateThresholds(empty, thresholds), "the threshold stays registered")
		select {
		case <-notified:
			t.Fatal("no threshold was crossed")
		case <-time.After(50 * time.Millisecond):
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "CONSUME_CGROUP="+group, "CONSUME_FIRST=50", "CONSUME_MORE=0", "GOGC=off", "GOMAXPROCS=1")
		require.NoError(t, os.MkdirAll(cgroupRoot+"/pids"+group, 0o755))
		t.Cleanup(func() { _ = os.Remove(cgroupRoot + "/pids" + group) })
		require.NoError(t, cmd.Start())
		requireNotified(t, notified, "usage crossed 30 MiB")
		used := &runtime.NodeUsage{PodsMemory: runtime.MemoryUsage{At: time.Now(), Capacity: limit, Usage: 50 * mib, WorkingSet: 50 * mib}}
		require.Empty(t, n.UpdateThresholds(used, thresholds), "it now notifies of the way back")
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.Eventually(t, func() bool { return os.Remove(dir) == nil }, time.Minute, 10*time.Millisecond)
		require.Empty(t, n.UpdateThresholds(empty, thresholds), "the cgroup was removed")
		for len(notified) > 0 {
			<-notified
		}
	}
	require.Equal(t, int64(limit-left), int64(30*mib))
}
