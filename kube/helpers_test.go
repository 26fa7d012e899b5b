package kube_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/podsource"
)

const nodeName = "node-1"

func newTestKube(t *testing.T, fake *kubetest.Fake) *kube.Kube {
	t.Helper()
	k, err := kube.New(kube.Config{Client: fake.Client(), NodeName: nodeName})
	require.NoError(t, err)
	return k
}

// newTestPod returns a pod that is bound to the node.
func newTestPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName:   nodeName,
			Containers: []corev1.Container{{Name: "c", Image: "registry.example/app:1"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort},
	}
}

// watcher has the last Set of a source.
type watcher struct {
	mu   sync.Mutex
	set  podsource.Set
	sets int
}

// watchPods watches until the test ends.
func watchPods(t *testing.T, src podsource.Source) *watcher {
	t.Helper()
	w := &watcher{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- src.Watch(ctx, func(s podsource.Set) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.set, w.sets = s, w.sets+1
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	synctest.Wait()
	return w
}

func (w *watcher) last() podsource.Set {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.set
}

// names returns the names and versions of the pods, in order.
func (w *watcher) names() (names []string) {
	for _, m := range w.last().Pods {
		names = append(names, m.Pod.Name)
	}
	return names
}

func (w *watcher) pod(name string) *corev1.Pod {
	for _, m := range w.last().Pods {
		if m.Pod.Name == name {
			return m.Pod
		}
	}
	return nil
}
