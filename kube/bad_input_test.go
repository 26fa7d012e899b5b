package kube_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/node"
)

// startHealthy starts an agent with one pod, and returns a check that nothing has
// happened to the pod since.
func startHealthy(t *testing.T, fake *kubetest.Fake, root string, opts ...agent.Option) (a *testAgent, check func()) {
	t.Helper()
	fake.Put("pods", newTestPod("healthy"))
	a = startAgent(t, fake, root, opts...)
	started := fake.Pod("default", "healthy").Status.ContainerStatuses
	require.Len(t, started, 1)
	require.NotNil(t, started[0].State.Running)
	return a, func() {
		t.Helper()
		synctest.Wait()
		require.Equal(t, started, fake.Pod("default", "healthy").Status.ContainerStatuses, "nothing that runs is harmed")
	}
}

// An object as large as an API server stores is a pod like any other.
func TestKube_LargePod(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long with the race detector, and is the same for all users")
	}
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		root := t.TempDir()
		a, check := startHealthy(t, fake, root)
		large := newTestPod("large")
		large.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LARGE", Value: strings.Repeat("x", 3<<19)}}
		fake.Put("pods", large)
		time.Sleep(10 * time.Second)
		require.Equal(t, corev1.PodRunning, a.phase("large"))
		deletePod(fake, "large", 1)
		time.Sleep(30 * time.Second)
		require.EqualValues(t, "deleted", a.phase("large"))
		check()
	})
}

// Pods beyond the node's limit are rejected with the reason, however many are bound at
// once, and those that fit run.
func TestKube_ManyPodsBoundAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long with the race detector, and is the same for all users")
	}
	const bound, limit = 300, 20
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		_, check := startHealthy(t, fake, t.TempDir(), agent.WithNode(node.Config{MaxPods: limit}))
		for i := range bound {
			fake.Put("pods", newTestPod(fmt.Sprintf("p-%05d", i)))
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		phases := map[corev1.PodPhase]int{}
		for i := range bound {
			st := fake.Pod("default", fmt.Sprintf("p-%05d", i)).Status
			if phases[st.Phase]++; st.Phase == corev1.PodFailed {
				require.Equal(t, "OutOfpods", st.Reason)
			}
		}
		require.Equal(t, map[corev1.PodPhase]int{corev1.PodRunning: limit - 1, corev1.PodFailed: bound - limit + 1}, phases)
		check()
	})
}

// No name of an API server becomes a path.
func TestKube_NamesThatArePaths(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"name":      func(p *corev1.Pod) { p.Name = "../../evil" },
		"dots":      func(p *corev1.Pod) { p.Name = ".." },
		"namespace": func(p *corev1.Pod) { p.Namespace = "../../evil" },
		"UID":       func(p *corev1.Pod) { p.UID = types.UID("../../evil") },
		"container": func(p *corev1.Pod) { p.Spec.Containers[0].Name = "../../evil" },
		"volume": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "../../evil", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := kubetest.NewFake(t)
				parent := t.TempDir()
				a, check := startHealthy(t, fake, filepath.Join(parent, "a", "b", "root"))
				bad := newTestPod("bad")
				change(bad)
				fake.Put("pods", bad)
				time.Sleep(time.Minute)
				synctest.Wait()
				identified := bad.Name == "bad" && bad.Namespace == "default" && bad.UID == "uid-bad"
				if identified {
					st := fake.Pod("default", "bad").Status
					assert.Equal(t, corev1.PodFailed, st.Phase)
					assert.Equal(t, "InvalidPod", st.Reason)
					assert.Contains(t, st.Message, ".name: Invalid value")
				}
				for _, pod := range a.Pods() {
					if pod.Name != "healthy" {
						assert.NotEqual(t, corev1.PodRunning, pod.Status.Phase)
					}
				}
				if identified {
					deletePod(fake, "bad", 30)
					time.Sleep(time.Minute)
					assert.EqualValues(t, "deleted", a.phase("bad"))
				}
				check()
				a.stop()
				require.NoError(t, filepath.WalkDir(parent, func(path string, _ os.DirEntry, err error) error {
					assert.NotContains(t, filepath.Base(path), "evil")
					return err
				}))
			})
		})
	}
}
