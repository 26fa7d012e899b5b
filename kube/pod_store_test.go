package kube

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// KU-11: pods are delivered in the order in which they appeared, however many have come and
// gone, and each in its newest version.
func TestPodStore_KeepsTheOrder(t *testing.T) {
	s := newPodStore("n")
	version := 0
	newPod := func(name, uid string) *corev1.Pod {
		version++
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: fmt.Sprint(version)},
			Spec:       corev1.PodSpec{NodeName: "n"},
		}
	}
	delivered := func() (pods []string) {
		for _, m := range s.set().Pods {
			pods = append(pods, fmt.Sprint(m.Pod.Name, "/", m.Pod.UID, "@", m.Pod.ResourceVersion))
		}
		return pods
	}
	require.NoError(t, s.Add(newPod("b", "1")))
	require.NoError(t, s.Add(newPod("a", "2")))
	require.NoError(t, s.Add(newPod("c", "3")))
	require.NoError(t, s.Update(newPod("b", "1")))
	assert.Equal(t, []string{"b/1@4", "a/2@2", "c/3@3"}, delivered())
	require.NoError(t, s.Update(newPod("b", "9")))
	assert.Equal(t, []string{"a/2@2", "c/3@3", "b/9@5"}, delivered(), "a recreated pod is a new one")
	for i := range 10_000 {
		pod := newPod("job", fmt.Sprint("job-", i))
		require.NoError(t, s.Add(pod))
		if i%2 == 0 {
			require.NoError(t, s.Delete(pod))
		}
		require.LessOrEqual(t, len(s.order), 2*len(s.pods)+minOrder, "what is gone takes no memory")
	}
	require.NoError(t, s.Delete(newPod("job", "job-9999")))
	assert.Equal(t, []string{"a/2@2", "c/3@3", "b/9@5"}, delivered())
	require.NoError(t, s.Update(newPod("c", "3")))
	require.NoError(t, s.Replace([]any{newPod("d", "4"), newPod("c", "3")}, ""))
	assert.Equal(t, []string{"c/3@10009", "d/4@10008"}, delivered(), "those that are not listed are gone")
}

// The response to a patch that arrives after the list without its pod does not bring the pod
// back, but what is watched after a stale list does.
func TestPodStore_ListIsTheEndOfWhatItLacks(t *testing.T) {
	s := newPodStore("n")
	at := func(version string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "1", ResourceVersion: version},
			Spec:       corev1.PodSpec{NodeName: "n"},
		}
	}
	require.NoError(t, s.Replace([]any{at("10")}, "12"))
	require.NoError(t, s.Replace(nil, "20"))
	s.observe(at("15"))
	assert.Empty(t, s.set().Pods)

	s.observe(at("30"))
	require.Len(t, s.set().Pods, 1)
	require.NoError(t, s.Replace(nil, "25"))
	require.Empty(t, s.set().Pods)
	require.NoError(t, s.Add(at("30")))
	assert.Len(t, s.set().Pods, 1)
}

// KU-11: an API server whose data were restored from a backup has older versions of pods, and pods that were deleted since.
func TestPodStore_FollowsARestoredServer(t *testing.T) {
	at := func(name, uid, version string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: version},
			Spec:       corev1.PodSpec{NodeName: "n"},
		}
	}
	for name, listed := range map[string]string{"with versions that go on": "1000", "with the versions of the backup": "50"} {
		t.Run(name, func(t *testing.T) {
			s := newPodStore("n")
			require.NoError(t, s.Replace([]any{at("a", "1", "10"), at("b", "2", "20"), at("c", "3", "30"), at("d", "5", "35")}, "40"))
			require.NoError(t, s.Update(at("a", "1", "60")))
			require.NoError(t, s.Delete(at("b", "2", "61")))
			require.NoError(t, s.Update(at("c", "4", "62")))
			s.UpdateResourceVersion("70")
			s.observe(at("d", "5", "80"))

			var changed []string
			s.setOnEvent(func(pod *corev1.Pod, _ bool) { changed = append(changed, pod.Name) })
			require.NoError(t, s.Replace([]any{at("a", "1", "10"), at("b", "2", "20"), at("c", "3", "30"), at("d", "5", "35")}, listed))
			var delivered []string
			for _, m := range s.set().Pods {
				delivered = append(delivered, fmt.Sprint(m.Pod.Name, "/", m.Pod.UID, "@", m.Pod.ResourceVersion))
			}
			assert.ElementsMatch(t, []string{"a/1@10", "b/2@20", "c/3@30", "d/5@35"}, delivered)
			assert.ElementsMatch(t, []string{"a", "b", "c", "d"}, changed, "their statuses are compared")
			require.NoError(t, s.Update(at("b", "2", "55")))
			pod, _ := s.get(types.NamespacedName{Namespace: "ns", Name: "b"})
			assert.Equal(t, "55", pod.ResourceVersion)
		})
	}
	t.Run("a list that is only late", func(t *testing.T) {
		s := newPodStore("n")
		require.NoError(t, s.Replace([]any{at("a", "1", "10")}, "40"))
		s.observe(at("a", "1", "60"))
		require.NoError(t, s.Replace([]any{at("a", "1", "10")}, "50"))
		pod, _ := s.get(types.NamespacedName{Namespace: "ns", Name: "a"})
		assert.Equal(t, "60", pod.ResourceVersion)
	})
}
