package eviction

import (
	"io/fs"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime"
)

// EV-10: where the kernel's threshold has to be for the next of ours.
func TestUsageAt(t *testing.T) {
	const mib = 1 << 20
	thresholds, err := ParseThresholds("memory.available<100Mi,pid.available<5", "memory.available<300Mi", "memory.available=1m", "")
	require.NoError(t, err)
	for _, tc := range []struct {
		name                     string
		capacity, usage, working uint64
		want                     uint64
	}{
		{"far away: the soft one is next", 1000, 200, 200, 700},
		{"between them: the hard one is next", 1000, 800, 800, 900},
		{"above both: the way back", 1000, 950, 950, 900},
		{"cache does not count", 1000, 350, 300, 750},
		{"so much cache that usage cannot get there", 1024, 900, 200, 1024 - 16},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at, ok := usageAt(runtime.MemoryUsage{
				At: time.Now(), Capacity: tc.capacity * mib, Usage: tc.usage * mib, WorkingSet: tc.working * mib,
			}, MemoryAvailable, thresholds)
			assert.True(t, ok)
			assert.Equal(t, tc.want*mib, at)
		})
	}
	_, ok := usageAt(runtime.MemoryUsage{At: time.Now(), Capacity: mib}, AllocatableMemoryAvailable, thresholds)
	assert.False(t, ok, "there is no threshold on it")
	_, ok = usageAt(runtime.MemoryUsage{}, MemoryAvailable, thresholds)
	assert.False(t, ok, "nothing is known")
}

// EV-10: by default the kernel's files are where they are mounted.
func TestKernelNotifiers_DefaultPaths(t *testing.T) {
	notifiers := KernelNotifiers(KernelConfig{PodsCgroup: func() string { return "/kubepods" }})
	for i, want := range map[int]Signal{0: MemoryAvailable, 2: AllocatableMemoryAvailable} {
		n, ok := notifiers[i].(*MemoryThresholdNotifier)
		require.True(t, ok)
		assert.Equal(t, want, n.signal)
		assert.Equal(t, "/sys/fs/cgroup/memory", n.hierarchy)
		assert.Equal(t, map[int]string{0: "/", 2: "/kubepods"}[i], n.group())
	}
	_, err := NewMemoryThresholdNotifier("/sys/fs/cgroup/memory", func() string { return "/" }, PIDAvailable)
	require.EqualError(t, err, "eviction: signal pid.available has no memory cgroup")
}

// EV-10: the triggers in the kernel's form. Without privileges the window is a multiple of 2s.
func TestPSINotifier_Triggers(t *testing.T) {
	for _, tc := range []struct {
		n                     PSINotifier
		trigger, unprivileged string
	}{
		{PSINotifier{}, "some 50000 1000000\x00", "some 100000 2000000\x00"},
		{PSINotifier{Full: true, Stall: 150 * time.Millisecond}, "full 150000 1000000\x00", "full 300000 2000000\x00"},
		{PSINotifier{Window: 2 * time.Second}, "some 50000 2000000\x00", "some 50000 2000000\x00"},
		{PSINotifier{Stall: 90 * time.Millisecond, Window: 3 * time.Second}, "some 90000 3000000\x00", "some 120000 4000000\x00"},
	} {
		trigger, unprivileged := tc.n.triggers()
		assert.Equal(t, tc.trigger, trigger)
		assert.Equal(t, tc.unprivileged, unprivileged)
	}
}

// EV-10: errors that mean that the kernel lacks a notification are not like others.
func TestUnsupported(t *testing.T) {
	for _, err := range []error{fs.ErrNotExist, fs.ErrPermission, unix.EOPNOTSUPP, unix.EINVAL, unix.ENOSYS, unix.EROFS} {
		wrapped := unsupported("x", &fs.PathError{Op: "open", Path: "/p", Err: err})
		require.ErrorIs(t, wrapped, runtime.ErrUnsupported)
		require.ErrorIs(t, wrapped, err)
	}
	other := unsupported("x", unix.EMFILE)
	require.NotErrorIs(t, other, runtime.ErrUnsupported)
	require.EqualError(t, other, "x: too many open files")
	assert.True(t, isRemoved(unix.ENODEV))
	assert.True(t, isRemoved(&fs.PathError{Err: fs.ErrNotExist}))
	assert.False(t, isRemoved(unix.EINVAL))
}
