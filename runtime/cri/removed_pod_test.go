package cri

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// The first inspection after the removal of a pod needs no call, unless there may be something of it.
func TestARemovedPodIsInspectedWithoutCalls(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(f *fake, c *Client, pod *corev1.Pod) // the removal, after the inspection that it is for
		after  func(f *fake, c *Client, pod *corev1.Pod)
		asks   bool // calls are needed
		lists  int
		left   int // sandboxes
	}{
		"nothing happens": {},
		"it was inspected since": {after: func(_ *fake, c *Client, pod *corev1.Pod) {
			_, _ = c.Pod(context.Background(), pod.UID)
		}, asks: true, lists: 2},
		"some time ago": {after: func(*fake, *Client, *corev1.Pod) {
			time.Sleep(removedFresh)
			synctest.Wait()
		}, asks: true, lists: 2},
		"events of its end are late": {after: func(_ *fake, c *Client, pod *corev1.Pod) {
			c.learn(pod.UID, time.Now().Round(0), &v1.ContainerEventResponse{ContainerEventType: v1.ContainerEventType_CONTAINER_DELETED_EVENT})
		}},
		"an event says that something starts": {after: func(f *fake, c *Client, pod *corev1.Pod) {
			c.learn(pod.UID, time.Now().Round(0), &v1.ContainerEventResponse{ContainerEventType: v1.ContainerEventType_CONTAINER_STARTED_EVENT})
		}, asks: true, lists: 2},
		"it is started once more": {after: func(_ *fake, c *Client, pod *corev1.Pod) {
			c.Apply(context.Background(), pod, startAll(pod), runtime.RunOptions{})
		}, asks: true, left: 1},
		"something was made since it was observed": {before: func(_ *fake, c *Client, pod *corev1.Pod) {
			time.Sleep(time.Millisecond)
			plan := startAll(pod)[:1]
			plan[0].Attempt = 1
			c.Apply(context.Background(), pod, plan, runtime.RunOptions{})
		}, asks: true, lists: 2, left: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, pod := newFake(), onePod("main")
				c := f.client(t, Config{})
				require.NoError(t, c.Kill(t.Context(), pod, running(t, f, c, pod), runtime.Termination{}))
				observed, err := c.Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				if tc.before != nil {
					tc.before(f, c, pod)
				}
				require.NoError(t, c.Remove(t.Context(), observed))
				if tc.after != nil {
					tc.after(f, c, pod)
				}
				lists := func() int { return f.count("ListPodSandbox") + f.count("ListContainers") }
				f.took()
				got, err := c.Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				assert.Len(t, got.Sandboxes, tc.left)
				assert.WithinDuration(t, time.Now(), got.ObservedAt, 0)
				assert.Equal(t, tc.lists, lists())
				assert.Equal(t, tc.asks, len(f.took()) > 0)
			})
		})
	}
}

// What is remembered of a removed pod that is not inspected goes by itself.
func TestARemovedPodIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, pod := newFake(), onePod("main")
		c := f.client(t, Config{})
		require.NoError(t, c.Kill(t.Context(), pod, running(t, f, c, pod), runtime.Termination{}))
		observed, err := c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		require.NoError(t, c.Remove(t.Context(), observed))
		assert.True(t, c.facts.of(pod.UID).removed)
		time.Sleep(removedFresh)
		synctest.Wait()
		assert.Empty(t, c.facts.pods)
	})
}
