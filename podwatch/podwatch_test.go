package podwatch_test

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sublet-dev/agent/podwatch"
	"github.com/sublet-dev/agent/status"
)

var (
	_ status.Sink    = (*podwatch.Hub)(nil)
	_ status.Deleter = (*podwatch.Hub)(nil)
)

func pod(uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}}
}

func set(t *testing.T, h *podwatch.Hub, uid, message string) {
	t.Helper()
	require.NoError(t, h.SetStatus(t.Context(), pod(uid), corev1.PodStatus{Message: message}))
}

func remove(t *testing.T, h *podwatch.Hub, uid string) {
	t.Helper()
	require.NoError(t, h.DeleteStatus(t.Context(), pod(uid)))
}

func text(e podwatch.Event) string {
	return fmt.Sprintf("%s %s %s missed=%d", e.Type, e.Pod.Name, e.Pod.Status.Message, e.Missed)
}

func TestHub_YieldsPodsAndTheirChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h podwatch.Hub
		set(t, &h, "a", "1")
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			for e := range h.Watch(ctx) {
				got = append(got, text(e))
			}
		}()
		synctest.Wait()
		set(t, &h, "a", "2")
		synctest.Wait()
		set(t, &h, "b", "1")
		synctest.Wait()
		remove(t, &h, "a")
		synctest.Wait()
		remove(t, &h, "of previous process")
		synctest.Wait()
		set(t, &h, "a", "3")
		synctest.Wait()
		cancel()
		<-done
		assert.Equal(t, []string{"ADDED a 1 missed=0", "MODIFIED a 2 missed=0", "ADDED b 1 missed=0", "DELETED a 2 missed=0", "DELETED of previous process  missed=0", "ADDED a 3 missed=0"}, got)
	})
}

// A watcher of a list knows when it has all pods, also where there are none and where pods change meanwhile.
func TestHub_WatchListMarksItsEnd(t *testing.T) {
	var h podwatch.Hub
	next, stop := iter.Pull(h.WatchList(t.Context()))
	defer stop()
	e, _ := next()
	assert.Equal(t, podwatch.Event{Type: watch.Bookmark}, e)
	set(t, &h, "a", "1")
	e, _ = next()
	assert.Equal(t, "ADDED a 1 missed=0", text(e))

	set(t, &h, "b", "1")
	other, stop := iter.Pull(h.WatchList(t.Context()))
	defer stop()
	first, _ := other()
	set(t, &h, "c", "1")
	for _, uid := range []string{"a", "b"} {
		remove(t, &h, uid)
	}
	second, _ := other()
	var got []string
	for range 3 {
		e, _ := other()
		if e.Type == watch.Bookmark {
			got = append(got, "BOOKMARK")
			continue
		}
		got = append(got, text(e))
	}
	assert.ElementsMatch(t, []string{"a", "b"}, []string{first.Pod.Name, second.Pod.Name})
	assert.Equal(t, watch.Deleted, second.Type)
	assert.Equal(t, []string{"BOOKMARK", "ADDED c 1 missed=0", "DELETED " + first.Pod.Name + " 1 missed=0"}, got)
}

// OP-6: a watcher that is slow gets the newest state, and learns that it has missed others.
func TestHub_SlowWatcher(t *testing.T) {
	var h podwatch.Hub
	set(t, &h, "a", "1")
	var got []string
	for e := range h.Watch(t.Context()) {
		got = append(got, text(e))
		switch len(got) {
		case 1:
			set(t, &h, "a", "2")
			set(t, &h, "a", "3")
			set(t, &h, "b", "1")
			remove(t, &h, "b")
			set(t, &h, "c", "1")
			set(t, &h, "c", "2")
		case 4:
			remove(t, &h, "a")
			set(t, &h, "a", "4")
		}
		if len(got) == 5 {
			break
		}
	}
	assert.Equal(t, []string{"ADDED a 1 missed=0", "MODIFIED a 3 missed=1", "DELETED b 1 missed=1", "ADDED c 2 missed=1", "MODIFIED a 4 missed=1"}, got)
	set(t, &h, "a", "5") // without a watcher
}

// Pods that come and go take no memory for a watcher that does not read.
func TestHub_BoundsMemory(t *testing.T) {
	var h podwatch.Hub
	set(t, &h, "first", "1")
	n := 0
	var last podwatch.Event
	for e := range h.Watch(t.Context()) {
		if n == 0 {
			for i := range 10_000 {
				set(t, &h, strconv.Itoa(i), "1")
				remove(t, &h, strconv.Itoa(i))
			}
			remove(t, &h, "first")
		}
		n++
		if last = e; e.Pod.Name == "first" && n > 1 {
			break
		}
	}
	assert.Equal(t, 1002, n)
	assert.Equal(t, "DELETED first 1 missed=0", text(last))
}

func TestHub_StopsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var h podwatch.Hub
	set(t, &h, "a", "1")
	for range h.Watch(ctx) {
		t.Fatal("done")
	}
}

func Example() {
	var hub podwatch.Hub // given to agent.WithStatusSink
	_ = hub.SetStatus(context.Background(), pod("web"), corev1.PodStatus{Phase: corev1.PodRunning})
	for event := range hub.Watch(context.Background()) {
		fmt.Println(event.Type, event.Pod.Name, event.Pod.Status.Phase)
		break
	}
	// Output: ADDED web Running
}
