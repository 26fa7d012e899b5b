package cri

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// event returns an event with the statuses of everything that there is.
func (f *fake) event() *v1.ContainerEventResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := &v1.ContainerEventResponse{CreatedAt: time.Now().UnixNano(), ContainerEventType: v1.ContainerEventType_CONTAINER_STARTED_EVENT}
	for _, s := range f.sandboxes {
		e.PodSandboxStatus = proto.CloneOf(s)
	}
	for _, ct := range f.containers {
		e.ContainersStatuses = append(e.ContainersStatuses, proto.CloneOf(ct))
	}
	return e
}

// startEventful starts pod on a runtime that sends an event after each call that makes or starts something, changed by edit.
// It returns a client that has received them.
func startEventful(t *testing.T, f *fake, pod *corev1.Pod, edit func(*v1.ContainerEventResponse)) *Client {
	t.Helper()
	f.events = make(chan *v1.ContainerEventResponse, 8)
	f.after = func(rpc string, _ any) error {
		switch rpc {
		case "RunPodSandbox", "CreateContainer", "StartContainer":
			time.Sleep(time.Microsecond) // CreatedAt has a fraction of a second
			e := f.event()
			edit(e)
			f.events <- e
			time.Sleep(time.Millisecond) // in the bubble: until it has arrived
		}
		return nil
	}
	f.addImage(busybox)
	c := f.client(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Watch(ctx, func(types.UID) {}) }()
	t.Cleanup(func() { cancel(); <-ended })
	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
	return c
}

func eachStatus(edit func(*v1.ContainerStatus)) func(*v1.ContainerEventResponse) {
	return func(e *v1.ContainerEventResponse) {
		for _, st := range e.GetContainersStatuses() {
			edit(st)
		}
	}
}

// What came with an event is not asked for again, and is the same.
func TestAnEventSparesStatusCalls(t *testing.T) {
	for name, hostNetwork := range map[string]bool{"pod network": false, "host network": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, pod := newFake(), onePod("main", "second")
				pod.Spec.HostNetwork = hostNetwork
				c := startEventful(t, f, pod, func(*v1.ContainerEventResponse) {})
				got, err := c.Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				assert.Zero(t, f.count("PodSandboxStatus"))
				assert.Zero(t, f.count("ContainerStatus"))
				assert.Nil(t, c.facts.of(pod.UID).event, "it is of no more use")

				asked, err := f.client(t, Config{}).Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				assert.Equal(t, 1, f.count("PodSandboxStatus"))
				assert.Equal(t, 2, f.count("ContainerStatus"))
				got.ObservedAt, asked.ObservedAt = time.Time{}, time.Time{}
				assert.Equal(t, asked, got)
			})
		})
	}
}

// Statuses of events that say too little, too much or something else than the runtime's lists are of no use.
func TestAnEventThatDoesNotSuffice(t *testing.T) {
	for name, tc := range map[string]struct {
		edit              func(*v1.ContainerEventResponse)
		then              func(f *fake, c *Client, uid types.UID, id string)
		sandbox, statuses int // calls
		lists             int
	}{
		"it has no statuses":          {edit: func(e *v1.ContainerEventResponse) { e.PodSandboxStatus, e.ContainersStatuses = nil, nil }, sandbox: 1, statuses: 1},
		"the sandbox is not ready":    {edit: func(e *v1.ContainerEventResponse) { e.PodSandboxStatus.State = v1.PodSandboxState_SANDBOX_NOTREADY }, sandbox: 1, lists: 1},
		"the sandbox has no address":  {edit: func(e *v1.ContainerEventResponse) { e.PodSandboxStatus.Network = nil }, sandbox: 1, statuses: 1},
		"it is of another sandbox":    {edit: func(e *v1.ContainerEventResponse) { e.PodSandboxStatus.Id = "former" }, sandbox: 1, lists: 1},
		"the time is rounded":         {edit: func(e *v1.ContainerEventResponse) { e.CreatedAt = time.Now().Unix() * int64(time.Second) }, statuses: 1},
		"the time is missing":         {edit: func(e *v1.ContainerEventResponse) { e.CreatedAt = 0 }, statuses: 1},
		"the container was not begun": {edit: eachStatus(func(st *v1.ContainerStatus) { st.StartedAt = 0 }), statuses: 1},
		"the container has ended":     {edit: eachStatus(func(st *v1.ContainerStatus) { st.State = v1.ContainerState_CONTAINER_EXITED }), statuses: 1},
		"another container":           {edit: eachStatus(func(st *v1.ContainerStatus) { st.Id = "former" }), statuses: 1},
		"it has ended since":          {then: func(f *fake, _ *Client, _ types.UID, id string) { f.exit(id, 3) }, statuses: 1},
		"it was changed since, and the clock set back": {
			edit: func(e *v1.ContainerEventResponse) { e.CreatedAt += int64(time.Hour) },
			then: func(_ *fake, c *Client, uid types.UID, id string) {
				time.Sleep(time.Microsecond)
				c.facts.forgetContainer(uid, id)
			}, statuses: 1, lists: 1,
		},
		"it was changed since": {then: func(_ *fake, c *Client, uid types.UID, id string) {
			time.Sleep(time.Microsecond)
			c.facts.forgetContainer(uid, id)
		}, statuses: 1, lists: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				edit := func(e *v1.ContainerEventResponse) {
					if tc.edit != nil {
						tc.edit(e)
					}
				}
				f, pod := newFake(), onePod("main")
				c := startEventful(t, f, pod, edit)
				assert.Equal(t, tc.sandbox, f.count("PodSandboxStatus"), "PodSandboxStatus during the start")
				var id string
				for id = range f.containers {
				}
				if tc.then != nil {
					tc.then(f, c, pod.UID, id)
				}
				got, err := c.Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				assert.Equal(t, tc.sandbox, f.count("PodSandboxStatus"), "PodSandboxStatus")
				assert.Equal(t, tc.statuses, f.count("ContainerStatus"), "ContainerStatus")
				assert.Equal(t, tc.lists, f.count("ListContainers"), "ListContainers")
				asked, err := f.client(t, Config{}).Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				got.ObservedAt, asked.ObservedAt = time.Time{}, time.Time{}
				assert.Equal(t, asked, got)
			})
		})
	}
}

// An event is kept for an inspection that begins after it, and no longer: the runtime's events of pods that are not asked about
// again would fill the memory.
func TestAnEventIsKeptForTheNextInspection(t *testing.T) {
	c := newFake().client(t, Config{})
	const uid = types.UID("uid-1")
	began := time.Now()
	record := func(at time.Time) {
		c.facts.recordList(runtime.Pod{UID: uid, ObservedAt: at, Sandboxes: []runtime.Sandbox{{ID: "sb"}}}, c.facts.of(uid))
	}
	event := func(after time.Duration) {
		at := began.Add(after)
		c.facts.addEvent(uid, podEvent{received: at, happened: at.Round(0)})
	}
	event(time.Second)
	record(began)
	assert.NotNil(t, c.facts.of(uid).event, "it happened during the inspection")
	record(began.Add(2 * time.Second))
	assert.Nil(t, c.facts.of(uid).event)
	event(time.Second)
	assert.Nil(t, c.facts.of(uid).event, "it is late")
	event(3 * time.Second)
	assert.NotNil(t, c.facts.of(uid).event)
	c.facts.recordList(runtime.Pod{UID: uid, ObservedAt: began.Add(4 * time.Second)}, c.facts.of(uid))
	assert.Empty(t, c.facts.pods, "nothing stays of a pod that is gone")

	// The clock is set back by an hour after the event.
	c.facts.addEvent(uid, podEvent{received: began, happened: began.Round(0).Add(time.Hour)})
	record(began.Add(time.Second))
	assert.Nil(t, c.facts.of(uid).event)
}

// Only starts tell what the next inspection would ask for: nothing is kept of pods that end.
func TestEventsOfOtherTypesAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startEventful(t, newFake(), onePod("main"), func(e *v1.ContainerEventResponse) {
			e.ContainerEventType = v1.ContainerEventType_CONTAINER_STOPPED_EVENT
		})
		assert.Nil(t, c.facts.of("uid-1").event)
	})
}
