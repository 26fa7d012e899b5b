package kube_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// KU-3: others may write the status of a pod. The node has the last word, but does not
// fight at full speed with one that disagrees.
func TestKube_ReconcilesStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		fake.Put("pods", newTestPod("a"))
		a := startAgent(t, fake, t.TempDir())
		require.Equal(t, corev1.PodRunning, a.phase("a"))

		foreign := func() {
			pod := fake.Pod("default", "a")
			pod.Status.Phase, pod.Status.PodIP = corev1.PodUnknown, "192.0.2.1"
			if conditionOf(pod.Status.Conditions, "example.com/theirs") == nil {
				pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: "example.com/theirs", Status: corev1.ConditionTrue})
			}
			fake.Put("pods", pod)
		}
		foreign()
		time.Sleep(time.Second)
		require.Equal(t, corev1.PodRunning, a.phase("a"))
		require.NotNil(t, conditionOf(fake.Pod("default", "a").Status.Conditions, "example.com/theirs"))

		fake.Requests()
		for range 60 {
			foreign()
			time.Sleep(time.Second)
		}
		require.LessOrEqual(t, kubetest.Count(fake.Requests(), "PATCH /api/v1/namespaces/default/pods/a/status"), 10)
		time.Sleep(21 * time.Second)
		require.Equal(t, corev1.PodRunning, a.phase("a"))
		fake.Requests()
		time.Sleep(10 * time.Minute)
		require.Zero(t, kubetest.Count(fake.Requests(), "PATCH"), "nothing is sent when nothing changes")
	})
}

// KU-3: a pod that another component has ended is terminated, and does not leave the phase that it was given.
func TestKube_KeepsTerminalPhase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		fake.Put("pods", newTestPod("a"))
		a := startAgent(t, fake, t.TempDir())
		require.Equal(t, corev1.PodRunning, a.phase("a"))
		ended := fake.Pod("default", "a")
		ended.Status.Phase, ended.Status.Reason = corev1.PodFailed, "Orphaned"
		fake.Put("pods", ended)
		for range 60 {
			time.Sleep(time.Second)
			require.Equal(t, corev1.PodFailed, a.phase("a"))
		}
		st := fake.Pod("default", "a").Status
		require.Equal(t, "Orphaned", st.Reason)
		require.NotNil(t, st.ContainerStatuses[0].State.Terminated)
	})
}

// KU-1: the whole deletion, as kubectl delete begins it.
func TestKube_DeletesPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		fake.Put("pods", newTestPod("a"))
		var phases []corev1.PodPhase
		fake.Intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodDelete {
				phases = append(phases, fake.Pod("default", "a").Status.Phase)
			}
			return false
		}
		a := startAgent(t, fake, t.TempDir())
		require.Equal(t, corev1.PodRunning, a.phase("a"))
		deletePod(fake, "a", 30)
		time.Sleep(45 * time.Second)
		require.Equal(t, corev1.PodPhase("deleted"), a.phase("a"))
		require.Len(t, phases, 1)
		require.Contains(t, []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed}, phases[0], "the last status was accepted before")
	})
}

// deletePod sets the deletion timestamp, as an API server does.
func deletePod(fake *kubetest.Fake, name string, grace int64) {
	pod := fake.Pod("default", name)
	at := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &grace
	fake.Put("pods", pod)
}

// newStubbornPod returns a pod that ignores signals.
func newStubbornPod(name string) *corev1.Pod {
	pod := newTestPod(name)
	pod.Annotations = map[string]string{simulated.ScriptPrefix + "ignore-term": "true"}
	return pod
}

// A grace period that is shortened counts from then on.
func TestKube_DeletesPodSoonerWhenGracePeriodIsShortened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		fake.Put("pods", newStubbornPod("a"))
		a := startAgent(t, fake, t.TempDir())
		require.Equal(t, corev1.PodRunning, a.phase("a"))
		deletePod(fake, "a", 600)
		time.Sleep(10 * time.Second)
		require.Equal(t, corev1.PodRunning, a.phase("a"))
		deletePod(fake, "a", 5)
		time.Sleep(15 * time.Second)
		require.Equal(t, corev1.PodPhase("deleted"), a.phase("a"))
	})
}

// With a force deletion the object is gone first. KU-1
func TestKube_EndsPodThatWasDeletedByForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		fake.Put("pods", newTestPod("a"))
		a := startAgent(t, fake, t.TempDir())
		require.Len(t, a.Components().PLEG.InspectionErrors(), 0)
		fake.Remove("pods", "default", "a")
		time.Sleep(time.Minute)
		pods, err := a.Components().Runtime.Pods(t.Context())
		require.NoError(t, err)
		require.Empty(t, pods)
		require.Empty(t, a.Components().StatusManager.PodUIDs())
	})
}

// A finalizer keeps the object after the node is done with the pod. KU-1
func TestKube_PodWithFinalizer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		pod := newTestPod("a")
		pod.Finalizers = []string{"example.com/keep"}
		fake.Put("pods", pod)
		a := startAgent(t, fake, t.TempDir())
		deletePod(fake, "a", 1)
		time.Sleep(time.Minute)
		require.Zero(t, *fake.Pod("default", "a").DeletionGracePeriodSeconds)
		require.NotEqual(t, corev1.PodRunning, a.phase("a"))
		fake.Requests()
		time.Sleep(10 * time.Minute)
		require.LessOrEqual(t, len(fake.Requests()), 3, "a request that was granted is not repeated")
		fake.Remove("pods", "default", "a")
		time.Sleep(time.Minute)
		require.Empty(t, a.Components().StatusManager.PodUIDs())
	})
}

// A pod that was deleted while no agent ran is ended, whether or not its object is left. KU-1
func TestKube_PodDeletedWhileAgentWasAway(t *testing.T) {
	for name, force := range map[string]bool{"with a deletion timestamp": false, "by force": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := kubetest.NewFake(t)
				fake.Put("pods", newTestPod("a"))
				root := t.TempDir()
				a := startAgent(t, fake, root)
				require.Equal(t, corev1.PodRunning, a.phase("a"))
				a.stop()
				deletePod(fake, "a", 30)
				if force {
					fake.Remove("pods", "default", "a")
				}
				a = startAgent(t, fake, root)
				time.Sleep(time.Minute)
				require.Equal(t, corev1.PodPhase("deleted"), a.phase("a"))
				require.Empty(t, a.Components().StatusManager.PodUIDs())
			})
		})
	}
}

func TestKube_DeletesFinishedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		pod := newTestPod("a")
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Annotations = map[string]string{simulated.ScriptPrefix + "run-for": "1s", simulated.ScriptPrefix + "exit-code": "0"}
		fake.Put("pods", pod)
		a := startAgent(t, fake, t.TempDir())
		time.Sleep(30 * time.Second)
		require.Equal(t, corev1.PodSucceeded, a.phase("a"))
		deletePod(fake, "a", 30)
		time.Sleep(10 * time.Second)
		require.Equal(t, corev1.PodPhase("deleted"), a.phase("a"))
	})
}

// An hour without API server: pods run on, and what happened is known soon after.
func TestKube_APIServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		fake.Put("pods", newTestPod("a"))
		fake.Put("pods", newTestPod("removed"))
		var away atomic.Bool
		fake.Intercept = func(w http.ResponseWriter, _ *http.Request) bool {
			if away.Load() {
				kubetest.WriteError(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
			}
			return away.Load()
		}
		root := t.TempDir()
		a := startAgent(t, fake, root)
		away.Store(true)
		fake.CutWatches(false)
		synctest.Wait()
		fake.Remove("pods", "default", "removed")
		fake.Put("pods", newTestPod("added"))
		time.Sleep(30 * time.Minute)
		a.stop()
		a = startAgent(t, fake, root) // the simulated runtime of before is gone: a reboot
		time.Sleep(30 * time.Minute)
		running := func() (names []string) {
			for _, pod := range a.Components().StatusManager.Pods() {
				if pod.Status.Phase == corev1.PodRunning {
					names = append(names, pod.Name)
				}
			}
			return names
		}
		require.ElementsMatch(t, []string{"a", "removed"}, running(), "the pods of before the reboot run")
		away.Store(false)
		time.Sleep(10 * time.Second)
		require.Equal(t, corev1.PodRunning, a.phase("a"))
		require.Equal(t, corev1.PodRunning, a.phase("added"))
		time.Sleep(time.Minute)
		require.ElementsMatch(t, []string{"a", "added"}, running())
	})
}
