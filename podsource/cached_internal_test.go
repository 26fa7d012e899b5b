package podsource

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a changed status costs a node on which the statuses of all pods have changed since the last save.
func BenchmarkCached_KeepStatus(b *testing.B) {
	pods := make([]Manifest, 1000)
	for i := range pods {
		name := fmt.Sprint("pod-", i)
		pods[i].Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "app:1"}}}}
	}
	c := &cached{savedAt: time.Now().Add(24 * time.Hour)}
	changes := 0
	change := func() (toBeSaved bool) {
		changes++
		pod := pods[changes%len(pods)].Pod.DeepCopy()
		pod.ResourceVersion, pod.Status.Message = fmt.Sprint(changes), fmt.Sprint("change ", changes)
		pods[changes%len(pods)].Pod = pod
		return c.keep(&Set{Pods: slices.Clone(pods)})
	}
	for range len(pods) + 1 {
		change()
	}
	for b.Loop() {
		if change() {
			b.Fatal("a changed status is to be saved at once")
		}
	}
}
