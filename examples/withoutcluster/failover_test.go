package withoutcluster

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/status"
)

// failover is the controller that is tested: it runs a standby while the primary is not ready.
type failover struct {
	pods    *podsource.Memory
	standby *corev1.Pod
}

// UpdateStatus is called with each change of a status.
func (f *failover) UpdateStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	switch {
	case pod.Name != "primary" || st.Phase != corev1.PodRunning:
	case isReady(st):
		f.pods.Delete(f.standby.Namespace, f.standby.Name)
	default:
		f.pods.Put(f.standby)
	}
	return nil
}

func isReady(st corev1.PodStatus) bool {
	return slices.ContainsFunc(st.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// newPod returns a web server that is probed every ten seconds, and whose simulation follows the annotations.
func newPod(name string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: annotations},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "web", Image: name + ":1",
			ReadinessProbe: &corev1.Probe{
				ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(80)}},
				PeriodSeconds:    10,
				FailureThreshold: 3,
			},
		}}},
	}
}

func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := newPod("primary", map[string]string{
			"sim.sublet.dev/pull-delay":  "2m",              // a large image, on a slow line
			"sim.sublet.dev/http-status": "10m=503,20m=200", // ill from its 10th to its 20th minute
		})
		standby := newPod("standby", map[string]string{
			"sim.sublet.dev/pull-error":    "too many requests", // the registry refuses twice
			"sim.sublet.dev/pull-failures": "2",
			"sim.sublet.dev/listen-after":  "30s", // a slow start
		})
		pods := podsource.NewMemory(primary)
		controller := &failover{pods: pods, standby: standby}
		a, err := agent.New(
			agent.WithNodeName("test"),
			agent.WithRootDir(t.TempDir()),
			agent.WithNode(node.Config{DisableCgroups: true}),
			agent.WithSimulatedRuntime(),
			agent.WithSource("memory", pods),
			agent.WithStatusSink(status.SinkFunc(controller.UpdateStatus)),
		)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()

		ready := func() (names []string) {
			for _, pod := range a.Pods() {
				if isReady(pod.Status) {
					names = append(names, pod.Name)
				}
			}
			slices.Sort(names)
			return names
		}
		time.Sleep(time.Minute) // of the bubble: it takes no time
		assert.Empty(t, ready(), "the image is being pulled")
		time.Sleep(5 * time.Minute)
		assert.Equal(t, []string{"primary"}, ready())
		time.Sleep(8 * time.Minute)
		assert.Equal(t, []string{"standby"}, ready(), "the primary has failed its probes")
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{"primary"}, ready(), "the primary is well, and the standby is gone")

		cancel()
		require.NoError(t, <-done)
	})
}
