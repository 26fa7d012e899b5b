//go:build linux

package eviction_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
)

// watching runs a notice until the test ends, and returns what it tells.
func watching(t *testing.T, n eviction.ThresholdNotifier) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	told, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		done <- n.Watch(ctx, func() {
			select {
			case told <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return told
}

// within waits for a notice.
func within(t *testing.T, told <-chan struct{}, d time.Duration, what string) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(d):
		t.Fatal(what)
	}
}

// groupV2 makes a group in the hierarchy of cgroup v2, which is there beside v1's
// on some machines, with fewer controllers.
func groupV2(t *testing.T, name string) string {
	t.Helper()
	for _, root := range []string{cgroupRoot, cgroupRoot + "/unified"} {
		if _, err := os.Stat(root + "/cgroup.controllers"); err != nil || os.Getuid() != 0 {
			continue
		}
		dir := filepath.Join(root, "lab", name)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		t.Cleanup(func() {
			assert.Eventually(t, func() bool { err := os.Remove(dir); return err == nil || os.IsNotExist(err) }, 5*time.Second, 10*time.Millisecond)
		})
		return dir
	}
	t.Skip("needs root and a hierarchy of cgroup v2")
	return ""
}

// EV-10: the kernel marks an events file that changed, and each change anew. Where
// v2 has no memory controller it is its cgroup.events, which the kernel marks in
// the same way as memory.events.
func TestEventsNotice(t *testing.T) {
	dir := groupV2(t, "evictionevents")
	path := filepath.Join(dir, "cgroup.events")
	told := watching(t, eviction.MemoryEventsNotifier{Path: path})
	time.Sleep(50 * time.Millisecond)
	for range 3 {
		cmd := exec.Command("sleep", "60")
		require.NoError(t, cmd.Start())
		require.NoError(t, os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0o600))
		within(t, told, 10*time.Second, "it was populated")
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		within(t, told, 10*time.Second, "and it is empty again")
	}
}

// EV-10: the notice on the pressure of a group that is removed ends with an error,
// once, and does not tell of it for ever.
func TestPressureNoticeOfARemovedGroup(t *testing.T) {
	dir := groupV2(t, "evictionremoved")
	path := filepath.Join(dir, "memory.pressure")
	if _, err := os.Stat(path); err != nil {
		t.Skip("needs pressure stall information")
	}
	var told atomic.Int64
	done := make(chan error, 1)
	go func() {
		done <- eviction.PSINotifier{Path: path, Window: 2 * time.Second}.Watch(t.Context(), func() { told.Add(1) })
	}()
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, os.Remove(dir))
	select {
	case err := <-done:
		require.ErrorContains(t, err, "gone")
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
	assert.LessOrEqual(t, told.Load(), int64(1))
}

// EV-10: a group whose processes wait for memory, because what they read is thrown
// away again and again, is told of by its own pressure file and the machine's.
func TestMemoryPressureNotice(t *testing.T) {
	if _, err := os.Stat(cgroupRoot + "/memory/cgroup.event_control"); err != nil {
		t.Skip("bounds memory by cgroup v1")
	}
	dir := groupV2(t, "evictionpsi")
	if _, err := os.Stat(dir + "/memory.pressure"); err != nil {
		t.Skip("needs pressure stall information")
	}
	bound := filepath.Join(cgroupRoot, "memory", "lab", "evictionpsi")
	require.NoError(t, os.MkdirAll(bound, 0o755))
	t.Cleanup(func() {
		assert.Eventually(t, func() bool { return os.Remove(bound) == nil }, 5*time.Second, 10*time.Millisecond)
	})
	require.NoError(t, os.WriteFile(bound+"/memory.limit_in_bytes", []byte("8388608"), 0o600))
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
	require.NoError(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)) // else what is read is there, and another's

	quick := eviction.PSINotifier{Stall: time.Millisecond, Window: 500 * time.Millisecond}
	group, machine := quick, quick
	group.Path, machine.Path = dir+"/memory.pressure", "/proc/pressure/memory"
	ofGroup, ofMachine := watching(t, group), watching(t, machine)
	script := fmt.Sprintf("echo $$ > %s/cgroup.procs; echo $$ > %s/cgroup.procs; while :; do cat %s > /dev/null; done", bound, dir, file)
	cmd := exec.Command("sh", "-c", script)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	within(t, ofGroup, 20*time.Second, "the group's stall was not told: "+pressureOf(group.Path))
	within(t, ofMachine, 20*time.Second, "the machine's stall was not told: "+pressureOf(machine.Path))
}

func pressureOf(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// EV-10: the notice on the group of all pods is armed when the group comes, armed
// anew when it was made anew, and silent about one that went.
func TestUsageNoticeOfAGroupThatComesAndGoes(t *testing.T) {
	if _, err := os.Stat(cgroupRoot + "/memory/cgroup.event_control"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and cgroup v1")
	}
	const group, limit, left = "/lab/evictionallpods", 100 * mib, 70 * mib
	dir := cgroupRoot + "/memory" + group
	name := ""
	n, err := eviction.NewMemoryThresholdNotifier(cgroupRoot+"/memory", func() string { return name }, eviction.AllocatableMemoryAvailable)
	require.NoError(t, err)
	thresholds, err := eviction.ParseThresholds("allocatableMemory.available<70Mi", "", "", "")
	require.NoError(t, err)
	told := watching(t, n)
	within(t, told, 5*time.Second, "it asks for a measurement at first")
	empty := &runtime.NodeUsage{PodsMemory: runtime.MemoryUsage{At: time.Now(), Capacity: limit}}

	require.Empty(t, n.UpdateThresholds(empty, thresholds), "the name is not known")
	name = group
	require.Empty(t, n.UpdateThresholds(empty, thresholds), "it is not there")
	for round := range 2 {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		t.Cleanup(func() { _ = os.Remove(dir) })
		require.NoError(t, os.WriteFile(dir+"/memory.limit_in_bytes", []byte(strconv.Itoa(limit)), 0o600))
		require.Equal(t, eviction.AllocatableMemoryAvailable, n.UpdateThresholds(empty, thresholds), "round %d", round)
		require.Equal(t, eviction.AllocatableMemoryAvailable, n.UpdateThresholds(empty, thresholds), "it stays armed")
		select {
		case <-told:
			t.Fatal("nothing was crossed")
		case <-time.After(50 * time.Millisecond):
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "EAT_MEMORY="+group, "EAT_FIRST=50", "GOGC=off", "GOMAXPROCS=1")
		require.NoError(t, os.MkdirAll(cgroupRoot+"/pids"+group, 0o755))
		t.Cleanup(func() { _ = os.Remove(cgroupRoot + "/pids" + group) })
		require.NoError(t, cmd.Start())
		within(t, told, 10*time.Second, "30 MiB were crossed")
		used := &runtime.NodeUsage{PodsMemory: runtime.MemoryUsage{At: time.Now(), Capacity: limit, Usage: 50 * mib, WorkingSet: 50 * mib}}
		require.Empty(t, n.UpdateThresholds(used, thresholds), "what it tells of now is the way back")
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.Eventually(t, func() bool { return os.Remove(dir) == nil }, 5*time.Second, 10*time.Millisecond)
		require.Empty(t, n.UpdateThresholds(empty, thresholds), "it went")
		for len(told) > 0 {
			<-told
		}
	}
	require.Equal(t, int64(limit-left), int64(30*mib))
}
