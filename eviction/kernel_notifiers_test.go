//go:build linux

package eviction_test

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
)

// EV-10: the notifiers of the node are always there, those of cgroups if they are named.
func TestKernelNotifiers(t *testing.T) {
	pods := func() string { return "/kubepods" }
	for _, tc := range []struct {
		cfg  eviction.KernelConfig
		want int
	}{
		{eviction.KernelConfig{}, 2},
		{eviction.KernelConfig{NodeCgroup: "/node"}, 3},
		{eviction.KernelConfig{PodsCgroup: pods}, 4},
		{eviction.KernelConfig{NodeCgroup: "/node", PodsCgroup: pods}, 5},
	} {
		assert.Len(t, eviction.KernelNotifiers(tc.cfg), tc.want)
		tc.cfg.CgroupMount, tc.cfg.ProcMount = t.TempDir(), t.TempDir()
		for _, n := range eviction.KernelNotifiers(tc.cfg) {
			require.ErrorIs(t, n.Watch(t.Context(), func() {}), runtime.ErrUnsupported, "a kernel that has none of them")
		}
	}
	psi := eviction.KernelNotifiers(eviction.KernelConfig{})[1]
	assert.Equal(t, eviction.PSINotifier{Path: "/proc/pressure/memory"}, psi)
}

// EV-10: memory events of a cgroup that is created later are found.
func TestKernelNotifiers_WaitForTheCgroup(t *testing.T) {
	mount := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(mount, "cgroup.controllers"), nil, 0o600))
	synctest.Test(t, func(t *testing.T) {
		var group atomic.Value
		group.Store("")
		var asked atomic.Int64
		n := eviction.KernelNotifiers(eviction.KernelConfig{CgroupMount: mount, PodsCgroup: func() string { asked.Add(1); return group.Load().(string) }})[3]
		done := make(chan error, 1)
		go func() { done <- n.Watch(t.Context(), func() {}) }()
		time.Sleep(25 * time.Second)
		synctest.Wait()
		assert.EqualValues(t, 3, asked.Load(), "at once and every 10 s")
		group.Store("/kubepods")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Empty(t, done)

		require.NoError(t, os.Mkdir(filepath.Join(mount, "kubepods"), 0o700))
		require.NoError(t, unix.Mknod(filepath.Join(mount, "kubepods", "memory.events.local"), unix.S_IFSOCK|0o600, 0))
		time.Sleep(10 * time.Second)
		require.ErrorIs(t, <-done, unix.ENXIO, "it was opened")
	})
}
