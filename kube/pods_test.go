package kube_test

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// KU-11: a server with and one without watch-list.
func TestPods_FollowsAPIServer(t *testing.T) {
	for name, withoutWatchList := range map[string]bool{"watch-list": false, "list and watch": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := kubetest.NewFake(t)
				fake.WithoutWatchList = withoutWatchList
				fake.Put("pods", newTestPod("b"))
				elsewhere := newTestPod("elsewhere")
				elsewhere.Spec.NodeName = "node-2"
				fake.Put("pods", elsewhere)
				mirror := newTestPod("mirror")
				mirror.Annotations = map[string]string{podspec.AnnotationMirror: "hash"}
				fake.Put("pods", mirror)
				w := watchPods(t, newTestKube(t, fake).Pods())
				require.Equal(t, []string{"b"}, w.names())
				require.False(t, w.last().Incomplete)
				unchanged := w.pod("b")

				fake.Put("pods", newTestPod("a"))
				require.Equal(t, []string{"b", "a"}, w.names(), "in the order in which they appeared")
				require.Same(t, unchanged, w.pod("b"))

				changed := newTestPod("a")
				changed.Labels = map[string]string{"x": "y"}
				fake.Put("pods", changed)
				require.Equal(t, "y", w.pod("a").Labels["x"])

				fake.Remove("pods", "default", "b")
				require.Equal(t, []string{"a"}, w.names())
				if !withoutWatchList {
					require.Equal(t, 1, kubetest.Count(fake.Requests(), "GET"))
				}
			})
		})
	}
}

// KU-11: the server may end a watch, restart, or lose the events since.
func TestPods_ContinuesAfterBrokenWatch(t *testing.T) {
	for name, compact := range map[string]bool{"continues where the watch ended": false, "lists again after 410 Gone": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := kubetest.NewFake(t)
				fake.Put("pods", newTestPod("stays"))
				fake.Put("pods", newTestPod("removed"))
				w := watchPods(t, newTestKube(t, fake).Pods())
				kept := w.pod("stays")
				var away atomic.Bool
				fake.Intercept = func(rw http.ResponseWriter, r *http.Request) bool {
					if away.Load() {
						kubetest.WriteError(rw, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
					}
					return away.Load()
				}
				away.Store(true)
				fake.CutWatches(false)
				synctest.Wait()
				fake.Remove("pods", "default", "removed")
				fake.Put("pods", newTestPod("added"))
				time.Sleep(5 * time.Minute)
				require.ElementsMatch(t, []string{"stays", "removed"}, w.names(), "what is not known does not change")
				require.Len(t, w.last().Errors, 1)
				require.ErrorIs(t, w.last().Errors[0].Err, podsource.ErrUnavailable)

				if compact {
					fake.CutWatches(true)
				}
				away.Store(false)
				time.Sleep(time.Minute)
				require.ElementsMatch(t, []string{"stays", "added"}, w.names())
				require.Empty(t, w.last().Errors)
				if !compact {
					require.Same(t, kept, w.pod("stays"))
				}
			})
		})
	}
}

// A server that is away is not asked all the time, and not by all nodes at the same time. KU-11
func TestPods_BacksOffWithJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		fake.Intercept = func(rw http.ResponseWriter, _ *http.Request) bool {
			kubetest.WriteError(rw, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			return true
		}
		w := watchPods(t, newTestKube(t, fake).Pods())
		time.Sleep(10 * time.Minute)
		n := len(fake.Requests())
		assert.Less(t, n, 300)
		assert.Greater(t, n, 60)
		require.True(t, w.last().Incomplete, "no pod is known to be removed")
		require.Len(t, w.last().Errors, 1)
	})
}

// One outage is one source error, however often and in whichever way the server is asked meanwhile. KU-11
func TestPods_ReportsAnOutageOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, log := kubetest.NewFake(t), new(logtest.Buffer)
		fake.Put("pods", newTestPod("a"))
		k, err := kube.New(kube.Config{Client: fake.Client(), NodeName: nodeName, Logger: logtest.NewLogger(log, slog.LevelWarn)})
		require.NoError(t, err)
		w := watchPods(t, k.Pods())
		fake.Intercept = func(rw http.ResponseWriter, _ *http.Request) bool {
			conn, _, err := http.NewResponseController(rw).Hijack()
			require.NoError(t, err)
			_, _ = conn.Write([]byte("no HTTP\r\n\r\n"))
			_ = conn.Close()
			return true
		}
		fake.CutWatches(false)
		time.Sleep(time.Hour)
		require.Len(t, w.last().Errors, 1)
		require.Equal(t, 2, w.sets, "the pods, and the outage")
		require.Empty(t, log.String())
	})
}

// A late event does not bring back an older version, nor a pod that was deleted. KU-11
func TestPods_IgnoresEventsOutOfOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		fake.Put("pods", newTestPod("a"))
		w := watchPods(t, newTestKube(t, fake).Pods())
		old := fake.Pod("default", "a")
		newer := newTestPod("a")
		newer.Labels = map[string]string{"version": "2"}
		fake.Put("pods", newer)
		fake.Send("pods", "MODIFIED", old)
		require.Equal(t, "2", w.pod("a").Labels["version"])

		deleted := fake.Pod("default", "a")
		fake.Remove("pods", "default", "a")
		require.Empty(t, w.names())
		fake.Send("pods", "MODIFIED", deleted)
		fake.Send("pods", "ADDED", old)
		require.Empty(t, w.names())

		recreated := newTestPod("a")
		recreated.UID = "uid-recreated"
		fake.Put("pods", recreated)
		fake.Send("pods", "DELETED", deleted)
		require.Equal(t, []string{"a"}, w.names(), "the deletion of a pod is not that of the next of its name")
	})
}

// 10,000 pods that are bound at once are some sets, not 10,000.
func TestPods_CoalescesBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		for i := range 2000 {
			fake.Put("pods", newTestPod("p"+string(rune('a'+i%26))+time.Duration(i).String()))
		}
		w := watchPods(t, newTestKube(t, fake).Pods())
		require.Len(t, w.last().Pods, 2000)
		require.Less(t, w.sets, 10)
	})
}

// Half of the memory of a pod is of no use here.
func TestPods_DropsManagedFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		pod := newTestPod("a")
		pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		fake.Put("pods", pod)
		w := watchPods(t, newTestKube(t, fake).Pods())
		require.Empty(t, w.pod("a").ManagedFields)
		fake.Put("pods", pod)
		require.Empty(t, w.pod("a").ManagedFields)
	})
}

// A node that starts without its API server runs its pods of before, and learns of all
// changes when the server is back. KU-2
func TestPods_BelowCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		fake := kubetest.NewFake(t)
		fake.Put("pods", newTestPod("a"))
		fake.Put("pods", newTestPod("b"))
		ctx, cancel := context.WithCancel(t.Context())
		first := podsource.Cached(newTestKube(t, fake).Pods(), dir)
		done := make(chan error, 1)
		go func() { done <- first.Watch(ctx, func(podsource.Set) {}) }()
		time.Sleep(5 * time.Second)
		cancel()
		require.NoError(t, <-done)

		var away atomic.Bool
		away.Store(true)
		fake.Intercept = func(rw http.ResponseWriter, _ *http.Request) bool {
			if away.Load() {
				kubetest.WriteError(rw, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
			}
			return away.Load()
		}
		second := podsource.Cached(newTestKube(t, fake).Pods(), dir)
		w := watchPods(t, second)
		time.Sleep(time.Minute)
		require.ElementsMatch(t, []string{"a", "b"}, w.names())
		require.Equal(t, "uid-a", string(w.pod("a").UID))
		require.True(t, w.last().Cached)

		fake.Remove("pods", "default", "b")
		away.Store(false)
		time.Sleep(9 * time.Second)
		require.Equal(t, []string{"a"}, w.names())
		require.False(t, w.last().Incomplete)
	})
}

// The UID of a pod is its identity, and its pod is not static. KU-1
func TestPods_AreNotStatic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		fake.Put("pods", newTestPod("a"))
		mux, err := podsource.New(podsource.Config{
			NodeName: nodeName, Sources: []podsource.NamedSource{{Name: "cluster", Source: podsource.Cached(newTestKube(t, fake).Pods(), t.TempDir())}},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- mux.Run(ctx) }()
		time.Sleep(time.Second)
		require.Len(t, mux.Pods(), 1)
		pod := mux.Pods()[0]
		require.Equal(t, "a", pod.Name)
		require.Equal(t, "uid-a", string(pod.UID))
		require.False(t, podspec.IsStatic(pod))
		changed := newTestPod("a")
		changed.Spec.Containers[0].Image = "registry.example/app:2"
		fake.Put("pods", changed)
		time.Sleep(time.Second)
		require.Equal(t, "registry.example/app:2", mux.Pods()[0].Spec.Containers[0].Image)
		require.Equal(t, pod.UID, mux.Pods()[0].UID)
		cancel()
		require.NoError(t, <-done)
	})
}

func TestPods_WatchedOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTestKube(t, kubetest.NewFake(t))
		watchPods(t, k.Pods())
		require.ErrorContains(t, k.Pods().Watch(t.Context(), func(podsource.Set) {}), "watched already")
	})
}
