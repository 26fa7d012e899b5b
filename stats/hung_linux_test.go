package stats

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/systest"
)

// A container may mount a file system over its volume, as those do that serve FUSE to others. One that does not answer keeps nothing
// else from being counted, and the agent from stopping.
func TestProvider_VolumeBelowAMountThatHangs(t *testing.T) {
	hung, other := podOf(t, "hung"), podOf(t, "other")
	systest.MountHung(t, hung.Volumes["vol"].Path)
	p, err := New(Config{Pods: func() []Pod { return []Pod{hung, other} }})
	require.NoError(t, err)
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		p.RefreshDiskUsage(t.Context(), time.Now())
		p.stopCounts()
	}()
	select {
	case <-counted:
	case <-time.After(time.Minute):
		t.Fatal("the count waits for the mount")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	assert.Zero(t, p.diskOf("hung", time.Time{}).volumes["vol"].Bytes)
	bytesIn(t, p.diskOf("hung", time.Time{}).logs["main"], 30_000)
	bytesIn(t, p.diskOf("other", time.Time{}).volumes["vol"].DiskUsage, 10_000)
}
