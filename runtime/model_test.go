package runtime_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/runtime"
)

func TestPod_Running(t *testing.T) {
	for state, want := range map[runtime.ContainerState]bool{
		runtime.Running: true, runtime.Unknown: true, runtime.Created: false, runtime.Exited: false,
	} {
		v := newView(ready(0), exited("b", 0), observed("a", 0, state))
		assert.Equal(t, want, v.CouldHaveRunningContainers(), "%v", state)
	}
	none := newView(ready(0))
	assert.False(t, none.CouldHaveRunningContainers())
}

func TestPod_Latest(t *testing.T) {
	v := newView(ready(0), exited("a", 1), running("b"), running("a", attempt(1)))
	assert.Equal(t, "a#1", v.LatestContainer("a").ID)
	assert.Nil(t, v.LatestContainer("c"))
}

func TestPod_ReadySandbox(t *testing.T) {
	for _, tt := range []struct {
		name     string
		observed runtime.PlanInput
		want     string
	}{
		{"none", newView(), ""},
		{"not ready", newView(exitedSandbox(0)), ""},
		{"ready", newView(ready(0)), "s0"},
		{"the newest is not ready", newView(ready(0), exitedSandbox(1)), ""},
		{"the newest is ready", newView(exitedSandbox(0), ready(1)), "s1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.observed.ReadySandbox()
			if tt.want == "" {
				assert.Nil(t, s)
				return
			}
			assert.Equal(t, tt.want, s.ID)
		})
	}
}

func TestMemoryUsage_Available(t *testing.T) {
	assert.Equal(t, uint64(30), runtime.MemoryUsage{Capacity: 100, WorkingSet: 70}.Available())
	assert.Zero(t, runtime.MemoryUsage{Capacity: 100, WorkingSet: 170}.Available())
}

// Two readings together are as old as the older, and not known if one is not.
func TestDiskUsage_Add(t *testing.T) {
	a := runtime.DiskUsage{At: testTime, Bytes: 5, Inodes: 2}
	b := runtime.DiskUsage{At: testTime.Add(time.Second), Bytes: 7, Inodes: 1}
	want := runtime.DiskUsage{At: testTime, Bytes: 12, Inodes: 3}
	assert.Equal(t, want, a.Add(b))
	assert.Equal(t, want, b.Add(a))
	assert.True(t, a.Add(runtime.DiskUsage{}).At.IsZero())
}
