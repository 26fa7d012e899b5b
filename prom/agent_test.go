package prom_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/runtime/cri"
)

// AG-5: what a scrape of a running agent has of the starts of pods and of their lifecycle.
func TestMetrics_OfAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reg := newMetrics(t)
		pod := func(name string) *corev1.Pod {
			return &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), CreationTimestamp: metav1.Now()},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}, {Name: "log", Image: "registry.example/log:1"}}},
			}
		}
		memory := podsource.NewMemory(pod("web"), pod("db"))
		a, err := agent.New(
			agent.WithSource("api", podsource.NotStatic(memory)), agent.WithNode(node.Config{DisableCgroups: true}), agent.WithRootDir(t.TempDir()), agent.WithSimulatedRuntime(),
			agent.WithHooks(agent.Hooks{
				SyncLoop: m.SyncLoop(), PodManager: m.PodManager(), Housekeeper: m.Housekeeper(), PodWorkers: m.PodWorkers(), PodSync: m.PodSync(), Status: m.Status(),
				CRI: cri.Hooks{OperationEnded: m.RuntimeOperation},
			}))
		require.NoError(t, err)
		workers, ok := a.Components().PodWorkers.(*podworkers.Workers)
		require.True(t, ok)
		require.NoError(t, prom.RegisterPods(reg, a.Pods))
		require.NoError(t, prom.RegisterNode(reg, prom.Node{
			Workers: workers.Snapshot, DesiredUIDs: func() map[types.UID]struct{} { return a.Components().PodManager.AddDesiredUIDs(nil) },
		}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		assert.Equal(t, []string{`kubelet_working_pods{config="desired",lifecycle="sync",static=""} 2`}, present(t, reg, "kubelet_working_pods"))
		assert.Equal(t, []string{`kubelet_active_pods{static=""} 2`}, present(t, reg, "kubelet_active_pods"))
		assert.Equal(t, []string{`kubelet_started_containers_total{container_type="container"} 4`}, series(t, reg, "kubelet_started_containers_total"))
		assert.Equal(t, []string{"kubelet_containers_per_pod_count_sum 4"}, series(t, reg, "kubelet_containers_per_pod_count_sum"))
		assert.EqualValues(t, 2, samples(t, reg, "kubelet_pod_start_total_duration_seconds"))
		assert.EqualValues(t, 2, samples(t, reg, "kubelet_pod_start_sli_duration_seconds"))
		assert.NotZero(t, samples(t, reg, "kubelet_image_pull_duration_seconds"))

		memory.Delete("default", "db")
		memory.Put(pod("other"))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 3, samples(t, reg, "kubelet_pod_start_total_duration_seconds"), "a pod counts once")
		assert.Equal(t, []string{`kubelet_working_pods{config="desired",lifecycle="sync",static=""} 2`}, present(t, reg, "kubelet_working_pods"))
		cancel()
		require.NoError(t, <-done)
	})
}

// present returns the series of a metric that are not 0.
func present(t *testing.T, reg *prometheus.Registry, name string) (lines []string) {
	t.Helper()
	for _, line := range series(t, reg, name) {
		if !strings.HasSuffix(line, " 0") {
			lines = append(lines, line)
		}
	}
	return lines
}
