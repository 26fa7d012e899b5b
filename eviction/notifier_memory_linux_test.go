package eviction

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

const mebibyte = 1 << 20

// memoryGroup is a directory in place of a cgroup of the v1 memory hierarchy.
type memoryGroup struct {
	t   *testing.T
	dir string
}

func newMemoryGroup(t *testing.T) memoryGroup {
	g := memoryGroup{t, t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(g.dir, "cgroup.event_control"), nil, 0o600))
	g.setUsage(10 * mebibyte)
	return g
}

func (g memoryGroup) setUsage(n int) {
	g.t.Helper()
	require.NoError(g.t, os.WriteFile(filepath.Join(g.dir, "memory.usage_in_bytes"), []byte(strconv.Itoa(n)+"\n"), 0o600))
}

// registered returns the threshold that was registered since the last call, or "".
func (g memoryGroup) registered() string {
	g.t.Helper()
	path := filepath.Join(g.dir, "cgroup.event_control")
	data, err := os.ReadFile(path)
	require.NoError(g.t, err)
	require.NoError(g.t, os.WriteFile(path, nil, 0o600))
	fields := strings.Fields(string(data))
	if len(fields) == 0 {
		return ""
	}
	require.Len(g.t, fields, 3)
	return fields[2]
}

// EV-10: a threshold is registered while Watch runs, and follows the cgroup and the page cache.
func TestMemoryThresholdNotifier_Registers(t *testing.T) {
	g := newMemoryGroup(t)
	thresholds, err := ParseThresholds("memory.available<80Mi", "", "", "")
	require.NoError(t, err)
	disks, err := ParseThresholds("nodefs.available<80Mi", "", "", "")
	require.NoError(t, err)
	usage := func(used, cache uint64) *runtime.NodeUsage {
		return &runtime.NodeUsage{Memory: runtime.MemoryUsage{At: time.Now(), Capacity: 100 * mebibyte, Usage: used * mebibyte, WorkingSet: (used - cache) * mebibyte}}
	}
	at := func(n int) string { return strconv.Itoa(n * mebibyte) }
	n, err := NewMemoryThresholdNotifier(g.dir, func() string { return "/" }, MemoryAvailable)
	require.NoError(t, err)
	require.Empty(t, n.UpdateThresholds(usage(10, 0), thresholds), "Watch does not run")
	require.Empty(t, g.registered())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	requested := make(chan struct{}, 1)
	go func() { done <- n.Watch(ctx, func() { requested <- struct{}{} }) }()
	<-requested // the threshold is registered after a measurement

	require.Equal(t, MemoryAvailable, n.UpdateThresholds(usage(10, 0), thresholds))
	assert.Equal(t, at(20), g.registered())
	require.Equal(t, MemoryAvailable, n.UpdateThresholds(usage(10, 0), thresholds))
	assert.Empty(t, g.registered(), "it has not moved")
	require.Equal(t, MemoryAvailable, n.UpdateThresholds(usage(10, 5), thresholds))
	assert.Equal(t, at(25), g.registered(), "the page cache has grown")
	require.Empty(t, n.UpdateThresholds(usage(10, 0), disks), "there is no threshold on memory")
	require.Empty(t, n.UpdateThresholds(&runtime.NodeUsage{}, thresholds), "nothing was measured")
	assert.Empty(t, g.registered())
	g.setUsage(12 * mebibyte)
	require.Equal(t, MemoryAvailable, n.UpdateThresholds(usage(10, 0), thresholds))
	assert.Equal(t, at(22), g.registered(), "the cgroup contains more than was measured")
	g.setUsage(30 * mebibyte)
	require.Empty(t, n.UpdateThresholds(usage(30, 0), thresholds), "the kernel reports when usage falls")
	assert.Equal(t, at(20), g.registered())

	require.NoError(t, os.Remove(filepath.Join(g.dir, "memory.usage_in_bytes")))
	require.Empty(t, n.UpdateThresholds(usage(30, 0), thresholds))
	assert.Nil(t, n.event, "the threshold of a cgroup that was removed is removed")
	assert.Empty(t, n.errCh, "that is no failure of Watch")
	g.setUsage(30 * mebibyte)
	require.Empty(t, n.UpdateThresholds(usage(30, 0), thresholds))
	assert.Equal(t, at(20), g.registered(), "it is registered anew")

	cancel()
	require.NoError(t, <-done)
	require.Empty(t, n.UpdateThresholds(usage(10, 0), thresholds), "Watch has ended")
	assert.Empty(t, g.registered())
}

// EV-10: a kernel that refuses a threshold ends Watch.
func TestMemoryThresholdNotifier_KernelRefuses(t *testing.T) {
	g := newMemoryGroup(t)
	control := filepath.Join(g.dir, "cgroup.event_control")
	require.NoError(t, os.Remove(control))
	require.NoError(t, os.Mkdir(control, 0o700))
	event, err := register(g.dir, 1)
	require.Error(t, err)
	require.Nil(t, event)

	require.NoError(t, os.Remove(filepath.Join(g.dir, "memory.usage_in_bytes")))
	event, err = register(g.dir, 1)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Nil(t, event)

	g.setUsage(mebibyte)
	thresholds, err := ParseThresholds("memory.available<80Mi", "", "", "")
	require.NoError(t, err)
	n := newMemoryThresholdNotifier(g.dir, func() string { return "/" }, MemoryAvailable)
	done := make(chan error, 1)
	started := make(chan struct{})
	go func() { done <- n.Watch(t.Context(), func() { close(started) }) }()
	<-started
	u := &runtime.NodeUsage{Memory: runtime.MemoryUsage{At: time.Now(), Capacity: 100 * mebibyte}}
	require.Empty(t, n.UpdateThresholds(u, thresholds))
	require.Empty(t, n.UpdateThresholds(u, thresholds), "it does not wait for Watch")
	require.ErrorContains(t, <-done, "memory threshold: ")
}

// EV-10: the usage of a cgroup without a limit says nothing about the node: that of the one with the
// lowest limit counts, or that of the machine.
func TestKernelNotifiers_UsageOfLimitedCgroup(t *testing.T) {
	const none = "9223372036854771712"
	for name, tc := range map[string]struct{ slice, node, want string }{
		"a limit":             {none, "1000", "/slice/node"},
		"none":                {none, none, "/"},
		"no cgroup":           {none, "", "/"},
		"one of those above":  {"1000", none, "/slice"},
		"a lower one above":   {"1000", "2000", "/slice"},
		"a higher one above":  {"2000", "1000", "/slice/node"},
		"an unreadable limit": {"1000", "?", "/slice"},
	} {
		t.Run(name, func(t *testing.T) {
			mount := t.TempDir()
			for group, limit := range map[string]string{"slice": tc.slice, "slice/node": tc.node} {
				if limit != "" {
					dir := filepath.Join(mount, "memory", group)
					require.NoError(t, os.MkdirAll(dir, 0o700))
					require.NoError(t, os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte(limit+"\n"), 0o600))
				}
			}
			n, ok := KernelNotifiers(KernelConfig{NodeCgroup: "/slice/node", CgroupMount: mount})[0].(*MemoryThresholdNotifier)
			require.True(t, ok)
			assert.Equal(t, tc.want, n.group())
		})
	}
}
