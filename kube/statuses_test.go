package kube_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/status"
)

func conditionOf(conditions []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range conditions {
		if conditions[i].Type == t {
			return &conditions[i]
		}
	}
	return nil
}

// running is the status of a running pod.
func running() corev1.PodStatus {
	return corev1.PodStatus{
		ObservedGeneration: 2, Phase: corev1.PodRunning, PodIP: "10.0.0.2", PodIPs: []corev1.PodIP{{IP: "10.0.0.2"}},
		QOSClass:   corev1.PodQOSBurstable,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now())}},
		}},
	}
}

// KU-3: one patch per change, and none without.
func TestStatuses_Patches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		pod := newTestPod("a")
		fake.Put("pods", pod)
		k := newTestKube(t, fake)
		watchPods(t, k.Pods())
		fake.Requests()

		require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, running()))
		require.Equal(t, []string{"PATCH /api/v1/namespaces/default/pods/a/status"}, fake.Requests(), "one call: what to compare with is known from the watch")
		got := fake.Pod("default", "a").Status
		require.Equal(t, corev1.PodRunning, got.Phase)
		require.Equal(t, int64(2), got.ObservedGeneration)
		require.Equal(t, corev1.PodQOSBestEffort, got.QOSClass, "set once")

		synctest.Wait()
		require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, running()))
		require.Empty(t, fake.Requests(), "unchanged is not sent")

		changed := running()
		changed.PodIP, changed.PodIPs, changed.Conditions = "10.0.0.3", []corev1.PodIP{{IP: "10.0.0.3"}}, changed.Conditions[:1]
		require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, changed))
		got = fake.Pod("default", "a").Status
		require.Equal(t, []corev1.PodIP{{IP: "10.0.0.3"}}, got.PodIPs)
		require.Nil(t, conditionOf(got.Conditions, corev1.ContainersReady), "a condition of the node that ends is removed")
	})
}

// What other components write is theirs, even when the pod object of the status is older. KU-3
func TestStatuses_KeepsWhatOthersWrote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		pod := newTestPod("a")
		claim := "claim-1"
		stored := pod.DeepCopy()
		stored.Status.NominatedNodeName, stored.Status.ObservedGeneration = "node-2", 7
		stored.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
			ResourceClaimName: "claim-2", RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c"}},
		}
		stored.Status.NodeAllocatableResourceClaimStatuses = []corev1.NodeAllocatableResourceClaimStatus{{ResourceClaimName: "claim-3"}}
		stored.Status.VolumeHealth = []corev1.PodVolumeHealth{{Name: "data"}}
		stored.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &claim}}
		stored.Status.Conditions = []corev1.PodCondition{
			{Type: "example.com/gate", Status: corev1.ConditionTrue},
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"},
			{Type: corev1.PodReady, Status: corev1.ConditionFalse},
		}
		started := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
		stored.Status.StartTime = &started
		fake.Put("pods", stored)
		k := newTestKube(t, fake)

		st := running()
		st.Conditions = append(st.Conditions, corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionFalse},
			corev1.PodCondition{Type: "example.com/removed", Status: corev1.ConditionTrue})
		require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, st))
		got := fake.Pod("default", "a").Status
		assert.Equal(t, corev1.PodRunning, got.Phase)
		assert.Equal(t, "node-2", got.NominatedNodeName)
		assert.Len(t, got.ResourceClaimStatuses, 1)
		assert.True(t, got.StartTime.Equal(&started))
		assert.Equal(t, corev1.ConditionTrue, conditionOf(got.Conditions, "example.com/gate").Status)
		assert.Equal(t, "EvictionByEvictionAPI", conditionOf(got.Conditions, corev1.DisruptionTarget).Reason)
		assert.Equal(t, corev1.ConditionTrue, conditionOf(got.Conditions, corev1.PodReady).Status)
		assert.Equal(t, corev1.ConditionTrue, conditionOf(got.Conditions, corev1.ContainersReady).Status, "one that the server lacks")
		assert.Nil(t, conditionOf(got.Conditions, "example.com/removed"), "a condition that its owner has removed")
		assert.Len(t, got.Conditions, 4)
		assert.Equal(t, int64(7), got.ObservedGeneration, "it does not go back")
		assert.Equal(t, stored.Status.ExtendedResourceClaimStatus, got.ExtendedResourceClaimStatus)
		assert.Equal(t, stored.Status.NodeAllocatableResourceClaimStatuses, got.NodeAllocatableResourceClaimStatuses)
		assert.Equal(t, "data", got.VolumeHealth[0].Name)

		st.VolumeHealth = []corev1.PodVolumeHealth{{Name: "own"}}
		st.Conditions = append(st.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "TerminationByKubelet"})
		require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, st))
		got = fake.Pod("default", "a").Status
		assert.Equal(t, "EvictionByEvictionAPI", conditionOf(got.Conditions, corev1.DisruptionTarget).Reason, "the node's own is not sent while the pod runs")
		st.Phase = corev1.PodFailed
		require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, st))
		got = fake.Pod("default", "a").Status
		assert.Equal(t, "own", got.VolumeHealth[0].Name)
		assert.Equal(t, "TerminationByKubelet", conditionOf(got.Conditions, corev1.DisruptionTarget).Reason, "the node's own reason is the later one")
	})
}

// The disruption controller resets the condition of a pod that was not deleted after all. What the
// node copied of it before does not bring it back.
func TestStatuses_DisruptionIsReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		pod := newTestPod("a")
		set := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"}
		pod.Status.Conditions = []corev1.PodCondition{set}
		fake.Put("pods", pod)
		k := newTestKube(t, fake)
		watchPods(t, k.Pods())
		st := running()
		st.Conditions = append(st.Conditions, set)
		require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, st))

		reset := fake.Pod("default", "a")
		conditionOf(reset.Status.Conditions, corev1.DisruptionTarget).Status = corev1.ConditionFalse
		conditionOf(reset.Status.Conditions, corev1.DisruptionTarget).Reason = ""
		fake.Put("pods", reset)
		synctest.Wait()
		require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, st))
		assert.Equal(t, corev1.ConditionFalse, conditionOf(fake.Pod("default", "a").Status.Conditions, corev1.DisruptionTarget).Status)
	})
}

// A pod does not leave a terminal phase, as with a kubelet, but for a static pod, which may start again. KU-3
func TestStatuses_KeepsTerminalPhase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		putNode(fake, "1")
		k := newTestKube(t, fake)
		ended := newTestPod("a")
		ended.Status.Phase, ended.Status.Reason, ended.Status.Message = corev1.PodFailed, "Orphaned", "by another component"
		fake.Put("pods", ended)
		for _, phase := range []corev1.PodPhase{corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed} {
			st := running()
			st.Phase, st.PodIP = phase, "10.0.0.3"
			require.NoError(t, k.Statuses().SetStatus(t.Context(), ended, st))
			got := fake.Pod("default", "a").Status
			require.Equal(t, corev1.PodFailed, got.Phase, phase)
			require.Equal(t, "10.0.0.3", got.PodIP, "the rest is the node's")
			require.Equal(t, []string{"Orphaned", "by another component"}, []string{got.Reason, got.Message})
		}
		static := newStaticPod("web", "1")
		for _, phase := range []corev1.PodPhase{corev1.PodFailed, corev1.PodRunning} {
			st := running()
			st.Phase = phase
			require.NoError(t, k.Statuses().SetStatus(t.Context(), static, st))
			require.Equal(t, phase, fake.Pod("default", "web-node-1").Status.Phase)
		}
	})
}

// A field of the API that is new must be given an owner.
func TestStatuses_EachFieldHasAnOwner(t *testing.T) {
	own := "ObservedGeneration Phase Conditions Message Reason HostIP HostIPs PodIP PodIPs InitContainerStatuses ContainerStatuses " +
		"EphemeralContainerStatuses Resize AllocatedResources Resources"
	others := "NominatedNodeName StartTime QOSClass ResourceClaimStatuses ExtendedResourceClaimStatus NodeAllocatableResourceClaimStatuses VolumeHealth"
	var fields []string
	for field := range reflect.TypeFor[corev1.PodStatus]().Fields() {
		fields = append(fields, field.Name)
	}
	require.ElementsMatch(t, strings.Fields(own+" "+others), fields)
}

// The resources of a resize are the node's.
func TestStatuses_SendsResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		pod := newTestPod("a")
		fake.Put("pods", pod)
		k := newTestKube(t, fake)
		st := running()
		st.ContainerStatuses[0].AllocatedResources = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
		st.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: st.ContainerStatuses[0].AllocatedResources}
		require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, st))
		got := fake.Pod("default", "a").Status.ContainerStatuses[0]
		require.Equal(t, "2", got.AllocatedResources.Cpu().String())
		require.Equal(t, "2", got.Resources.Requests.Cpu().String())
	})
}

// A pod that is not there, or not the same, has no status to set.
func TestStatuses_DeletedPod(t *testing.T) {
	for name, tc := range map[string]struct {
		stored  *corev1.Pod
		watched bool
		calls   int
	}{
		"deleted":                 {nil, false, 1},
		"known to be deleted":     {nil, true, 0},
		"recreated":               {newTestPod("a"), false, 1},
		"known to be another one": {newTestPod("a"), true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := kubetest.NewFake(t)
				if tc.stored != nil {
					tc.stored.UID = "uid-other"
					fake.Put("pods", tc.stored)
				}
				k := newTestKube(t, fake)
				if tc.watched {
					watchPods(t, k.Pods())
				}
				fake.Requests()
				pod := newTestPod("a")
				require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, running()))
				require.Len(t, fake.Requests(), tc.calls)
				now := metav1.Now()
				pod.DeletionTimestamp = &now
				require.NoError(t, k.Statuses().DeleteStatus(t.Context(), pod))
				if tc.stored != nil {
					require.Equal(t, "uid-other", string(fake.Pod("default", "a").UID))
					require.Equal(t, corev1.PodPending, fake.Pod("default", "a").Status.Phase)
				}
			})
		})
	}
}

// Failures are returned, so that the status manager retries; a stale comparison is made again.
func TestStatuses_Failures(t *testing.T) {
	for name, tc := range map[string]struct {
		code   int
		reason metav1.StatusReason
		times  int // how often the server rejects the patch
		fails  bool
	}{
		"conflict once":     {http.StatusConflict, metav1.StatusReasonConflict, 1, false},
		"conflict forever":  {http.StatusConflict, metav1.StatusReasonConflict, 1000, true},
		"invalid forever":   {http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, 1000, true},
		"invalid once":      {http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, 1, false},
		"too many requests": {http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, 2, false},
		"internal error":    {http.StatusInternalServerError, metav1.StatusReasonInternalError, 1, true},
		"not found":         {http.StatusNotFound, metav1.StatusReasonNotFound, 1, false},
		"forbidden":         {http.StatusForbidden, metav1.StatusReasonForbidden, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := kubetest.NewFake(t)
				pod := newTestPod("a")
				fake.Put("pods", pod)
				rejections := tc.times
				fake.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method != http.MethodPatch || rejections == 0 {
						return false
					}
					rejections--
					kubetest.WriteError(w, tc.code, tc.reason)
					return true
				}
				k := newTestKube(t, fake)
				watchPods(t, k.Pods())
				err := k.Statuses().SetStatus(t.Context(), pod, running())
				require.Equal(t, tc.fails, err != nil, "%v", err)
				require.Equal(t, name == "invalid forever", errors.Is(err, status.ErrRejected), "%v", err)
				if !tc.fails && tc.code != http.StatusNotFound {
					require.Equal(t, corev1.PodRunning, fake.Pod("default", "a").Status.Phase)
				}
			})
		})
	}
}

// A server that does not answer costs ten seconds, so that a status is soon sent when it is back.
func TestStatuses_Hang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		fake.Put("pods", newTestPod("a"))
		fake.Intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			_, _ = io.Copy(io.Discard, r.Body) // only then a closed connection is noticed
			<-r.Context().Done()
			return true
		}
		start := time.Now()
		k, pod, now := newTestKube(t, fake), newTestPod("a"), metav1.Now()
		require.ErrorIs(t, k.Statuses().SetStatus(t.Context(), pod, running()), context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, time.Since(start))
		pod.DeletionTimestamp = &now
		require.ErrorIs(t, k.Statuses().DeleteStatus(t.Context(), pod), context.DeadlineExceeded)
		require.Equal(t, 20*time.Second, time.Since(start))
	})
}

func TestStatuses_BoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		pod := newTestPod("a")
		fake.Put("pods", pod)
		k, err := kube.New(kube.Config{Client: fake.Client(), NodeName: nodeName, StatusQPS: 10, StatusBurst: 5})
		require.NoError(t, err)
		start := time.Now()
		for i := range 25 {
			st := running()
			st.ContainerStatuses[0].RestartCount = int32(i)
			require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, st))
		}
		require.InDelta(t, 2*time.Second, time.Since(start), float64(150*time.Millisecond))
	})
}

// KU-1: only a deletion timestamp says that a pod goes.
func TestStatuses_DeletesFinishedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		pod := newTestPod("a")
		fake.Put("pods", pod)
		k := newTestKube(t, fake)
		require.NoError(t, k.Statuses().DeleteStatus(t.Context(), pod))
		require.NotNil(t, fake.Pod("default", "a"), "nobody has deleted it")

		now := metav1.Now()
		pod.DeletionTimestamp = &now
		pod.Finalizers = []string{"example.com/keep"}
		fake.Put("pods", pod)
		require.NoError(t, k.Statuses().DeleteStatus(t.Context(), pod))
		require.Zero(t, *fake.Pod("default", "a").DeletionGracePeriodSeconds, "the finalizer keeps the object; the node is done")
		pod.Finalizers = nil
		fake.Put("pods", pod)
		require.NoError(t, k.Statuses().DeleteStatus(t.Context(), pod))
		require.Nil(t, fake.Pod("default", "a"))
	})
}

func TestStatuses_DeletionIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		pod := newTestPod("a")
		now := metav1.Now()
		pod.DeletionTimestamp = &now
		fake.Put("pods", pod)
		fake.Intercept = func(w http.ResponseWriter, _ *http.Request) bool {
			kubetest.WriteError(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			return true
		}
		require.ErrorContains(t, newTestKube(t, fake).Statuses().DeleteStatus(t.Context(), pod), "delete pod")
	})
}
