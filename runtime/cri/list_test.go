package cri

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

// AG-10: the newest attempt is the newest container, whatever the clock was set to when
// it was created. Otherwise a container that runs would be started again and again.
func TestNewestFirst(t *testing.T) {
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	p := runtime.Pod{
		Sandboxes: []runtime.Sandbox{
			{ID: "sandbox 0", Created: noon},
			{ID: "sandbox 1", Attempt: 1, State: runtime.SandboxReady, Created: noon.Add(-3 * time.Hour)},
		},
		Containers: []runtime.Container{
			{ID: "web 0", Name: "web", State: runtime.Exited, Created: noon},
			{ID: "web 1", Name: "web", Attempt: 1, State: runtime.Running, Created: noon.Add(-3 * time.Hour)},
			{ID: "log 2, earlier", Name: "log", Attempt: 2, Created: noon},
			{ID: "log 2, later", Name: "log", Attempt: 2, Created: noon.Add(time.Second)},
		},
	}
	newestFirst(&p)
	if s := p.ReadySandbox(); assert.NotNil(t, s) {
		assert.Equal(t, "sandbox 1", s.ID)
	}
	assert.Equal(t, "web 1", p.LatestContainer("web").ID)
	assert.Equal(t, "log 2, later", p.LatestContainer("log").ID)
}

// What is listed twice counts as it was last, also beside others of one attempt and time.
func TestNewestFirst_ListedTwice(t *testing.T) {
	p := runtime.Pod{Containers: []runtime.Container{
		{ID: "a", Name: "web", State: runtime.Running},
		{ID: "b", Name: "log", State: runtime.Running},
		{ID: "a", Name: "web", State: runtime.Exited},
		{ID: "b", Name: "log", State: runtime.Running},
	}}
	newestFirst(&p)
	assert.Equal(t, []runtime.Container{{ID: "a", Name: "web", State: runtime.Exited}, {ID: "b", Name: "log", State: runtime.Running}}, p.Containers)
}

// A runtime that lists something twice costs no pod its containers, as a second ready sandbox would.
func TestPods_ListedTwice(t *testing.T) {
	f := newFake()
	f.streams, f.repeats = true, true
	c := f.client(t, Config{})
	pod := onePod("main", "beside")
	running(t, f, c, pod)
	pods, err := c.Pods(t.Context())
	require.NoError(t, err)
	require.Len(t, pods, 1)
	assert.Len(t, pods[0].Sandboxes, 1)
	assert.Len(t, pods[0].Containers, 2)
	assert.Empty(t, runtime.Plan(pod, runtime.PlanInput{Pod: pods[0]}, time.Now()))
}

// A streamed list that does not end costs no more memory than the largest answer.
func TestPods_EndlessStream(t *testing.T) {
	f := newFake()
	f.streams, f.endless = true, true
	c := f.client(t, Config{Timeout: time.Minute})
	assert.Equal(t, maxMessage, c.mostListed)
	c.mostListed = 1 << 10
	_, err := c.Pods(t.Context())
	require.EqualError(t, err, "StreamContainers: the list has more than 1024 bytes (ResourceExhausted)")
}

// A runtime that answers without a status does not cost a pod what runs of it.
func TestPod_EmptyStatus(t *testing.T) {
	f := newFake()
	pod := onePod("main")
	running(t, f, f.client(t, Config{}), pod)
	for _, rpc := range []string{"PodSandboxStatus", "ContainerStatus"} {
		c := f.client(t, Config{}) // which knows nothing yet
		f.setEmpty(rpc)
		_, err := c.Pod(t.Context(), pod.UID)
		require.ErrorIs(t, err, errEmpty, rpc)
		require.ErrorContains(t, err, rpc)
		f.setEmpty("")
		observed, err := c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		assert.True(t, observed.CouldHaveRunningContainers())
	}
}

// A runtime that answers without an id has not made anything.
func TestApply_EmptyID(t *testing.T) {
	for rpc, failed := range map[string]string{"RunPodSandbox": "", "CreateContainer": "main"} {
		f := newFake()
		f.addImage(busybox)
		f.setEmpty(rpc)
		pod := onePod("main")
		failures := f.client(t, Config{}).Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures
		require.ErrorIs(t, failures[failed].Err, errEmpty, rpc)
		assert.Zero(t, f.count("StartContainer"))
	}
}
