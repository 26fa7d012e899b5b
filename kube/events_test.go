package kube_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/events"
	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/podspec"
)

// runKube runs k until the test ends or stop is called.
func runKube(t *testing.T, k *kube.Kube) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	return stop
}

func newTestEvent(reason, message string) *corev1.Event {
	return podspec.NewEvent(newTestPod("a"), corev1.EventTypeWarning, reason, message, time.Now())
}

// Clients select the events of nodes by their source; those of others keep theirs.
func TestEvents_SourceIsKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		k := newTestKube(t, fake)
		runKube(t, k)
		own := newTestEvent("BackOff", "own")
		k.Events().Record(own)
		time.Sleep(time.Second)
		other := newTestEvent("Synced", "other")
		other.Source.Component, other.ReportingController = "operator", "example.com/operator"
		k.Events().Record(other)
		time.Sleep(time.Second)
		events := map[string]corev1.Event{}
		for _, e := range fake.Events() {
			events[e.Message] = e
		}
		require.Len(t, events, 2)
		require.Equal(t, []string{"kubelet", "kubelet"}, []string{events["own"].Source.Component, events["own"].ReportingController})
		require.Equal(t, []string{"operator", "example.com/operator"}, []string{events["other"].Source.Component, events["other"].ReportingController})
		require.Equal(t, podspec.EventComponent, own.Source.Component, "the caller's")
	})
}

// KU-9
func TestEvents_CountsRepeatedEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		k := newTestKube(t, fake)
		runKube(t, k)
		for range 3 {
			k.Events().Record(newTestEvent("BackOff", "restarting failed container"))
			time.Sleep(time.Second)
		}
		events := fake.Events()
		require.Len(t, events, 1)
		require.Equal(t, int32(3), events[0].Count)
		require.Equal(t, "BackOff", events[0].Reason)
		require.Equal(t, "uid-a", string(events[0].InvolvedObject.UID))
		require.True(t, events[0].FirstTimestamp.Before(&events[0].LastTimestamp))

		counted := newTestEvent("BackOff", "restarting failed container")
		counted.Count = 20
		k.Events().Record(counted)
		time.Sleep(time.Second)
		require.Equal(t, int32(20), fake.Events()[0].Count, "counted by who recorded it")

		fake.Remove("events", "default", events[0].Name)
		k.Events().Record(newTestEvent("BackOff", "restarting failed container"))
		time.Sleep(time.Second)
		require.Len(t, fake.Events(), 1, "an event that has expired is created again")
	})
}

// KU-9: as client-go combines them.
func TestEvents_CombinesSimilarEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		k := newTestKube(t, fake)
		runKube(t, k)
		for i := range 20 {
			k.Events().Record(newTestEvent("Unhealthy", fmt.Sprintf("probe failed with code %d", i)))
			time.Sleep(time.Second)
		}
		require.LessOrEqual(t, len(fake.Events()), 10)
		combined := false
		for _, e := range fake.Events() {
			combined = combined || e.Count > 5
		}
		require.True(t, combined)
	})
}

// KU-9: a recorder that has counted and combined events is taken at its word, for each container of a pod.
func TestEvents_CombinedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		k := newTestKube(t, fake)
		runKube(t, k)
		recorder := events.New(k.Events())
		pod := newTestPod("a")
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "d"})
		fail := func(container string, i int) {
			recorder.Record(podspec.NewContainerEvent(pod, container, corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s failed with code %d", container, i), time.Now()))
			time.Sleep(time.Second)
		}
		for i := range 100 {
			fail("c", i)
		}
		combined := func(container string) (found []string) {
			for _, e := range fake.Events() {
				if strings.Contains(e.Message, "combined") && strings.Contains(e.InvolvedObject.FieldPath, container) {
					found = append(found, fmt.Sprint(e.Message, ": ", e.Count))
				}
			}
			return found
		}
		require.Len(t, fake.Events(), 10, "nine, and one for all others")
		require.Equal(t, []string{"(combined from similar events): c failed with code 69: 61"}, combined("{c}"))
		for i := range 20 {
			fail("d", i)
		}
		time.Sleep(time.Minute)
		fail("c", 100)
		require.Equal(t, []string{"(combined from similar events): c failed with code 100: 92"}, combined("{c}"), "those of another container change nothing")
		for _, e := range fake.Events() {
			require.LessOrEqual(t, strings.Count(e.Message, "combined"), 1, e.Message)
		}
	})
}

// KU-9
func TestEvents_FiltersSpam(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		k := newTestKube(t, fake)
		runKube(t, k)
		for i := range 100 {
			k.Events().Record(newTestEvent(fmt.Sprintf("Reason%d", i), "message"))
			time.Sleep(time.Millisecond) // part of the name
		}
		time.Sleep(time.Second)
		require.Len(t, fake.Events(), 25, "a burst about one object")
		time.Sleep(6 * time.Minute)
		k.Events().Record(newTestEvent("Later", "message"))
		time.Sleep(time.Millisecond)
		k.Events().Record(newTestEvent("Later2", "message"))
		time.Sleep(time.Second)
		require.Len(t, fake.Events(), 26, "one every five minutes after that")
	})
}

// Recording never waits for the API server, and the newest events are kept. KU-9
func TestEvents_APIServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		var away atomic.Bool
		away.Store(true)
		fake.Intercept = func(w http.ResponseWriter, _ *http.Request) bool {
			if away.Load() {
				kubetest.WriteError(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
			}
			return away.Load()
		}
		k := newTestKube(t, fake)
		runKube(t, k)
		for i := range 1500 {
			e := newTestEvent("Failed", "message")
			e.InvolvedObject.UID, e.InvolvedObject.Name, e.Name = "", fmt.Sprintf("pod-%d", i), fmt.Sprintf("event-%d", i)
			k.Events().Record(e)
			if i == 0 {
				synctest.Wait() // it is being written
			}
		}
		time.Sleep(30 * time.Second)
		away.Store(false)
		time.Sleep(time.Minute)
		require.Equal(t, 1001, len(fake.Events()), "the one that was being written, and the newest 1000")
	})
}

// An event that the server does not want is dropped.
func TestEvents_RejectedEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		fake.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/api/v1/namespaces/terminating/events" {
				return false
			}
			kubetest.WriteError(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			return true
		}
		k := newTestKube(t, fake)
		runKube(t, k)
		bad := newTestEvent("Failed", "message")
		bad.Namespace = "terminating"
		k.Events().Record(bad)
		k.Events().Record(newTestEvent("Failed", "message"))
		time.Sleep(time.Second)
		require.Len(t, fake.Events(), 1)
		require.Equal(t, 1, kubetest.Count(fake.Requests(), "POST /api/v1/namespaces/terminating"))
	})
}

// What was recorded last is still written when Run ends.
func TestEvents_WrittenAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		k := newTestKube(t, fake)
		stop := runKube(t, k)
		synctest.Wait()
		k.Events().Record(newTestEvent("Killing", "stopping container"))
		stop()
		require.Len(t, fake.Events(), 1)
		require.ErrorContains(t, k.Run(t.Context()), "called twice")
	})
}
