package agent_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// SL-12: a critical pod that does not fit preempts others, whether pods come from an API
// server or are static, and starts when they have ended.
func TestAgent_CriticalPodPreempts(t *testing.T) {
	api := func(s podsource.Source) podsource.Source { return podsource.NotStatic(s) }
	files := func(s podsource.Source) podsource.Source { return s }
	for name, tc := range map[string]struct {
		wrap     func(podsource.Source) podsource.Source
		priority *int32 // of the victims
		restart  bool   // of the agent, while the pod waits
		retried  bool   // the victim waits for its turn
	}{
		"in a cluster":                      {wrap: api},
		"in a cluster, over a restart":      {wrap: api, restart: true},
		"standalone":                        {wrap: files, priority: new(int32(10)), retried: true},
		"standalone, over a restart":        {wrap: files, priority: new(int32(10)), restart: true, retried: true},
		"in a cluster, with a low priority": {wrap: api, priority: new(int32(10))},
	} {
		t.Run(name, func(t *testing.T) {
			capacity := node.Config{Allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")}}
			agenttest.OnMachine(t, capacity, func(t *testing.T, n *agenttest.Machine) {
				small, large := agenttest.SizedPod("small", "20Mi", "0s=1Mi"), agenttest.SizedPod("large", "60Mi", "0s=1Mi")
				critical := agenttest.SizedPod("critical", "70Mi", "0s=1Mi")
				critical.Spec.PriorityClassName = "system-node-critical"
				for _, pod := range []*corev1.Pod{small, large} {
					pod.Spec.Priority = tc.priority
					pod.Annotations[simulated.ScriptPrefix+"stop-after"] = "20s"
				}
				pods := podsource.NewMemory(small, large)
				var statuses agenttest.Statuses
				var events []string
				run := func() *agenttest.Process {
					return n.Start(agent.WithSource("pods", tc.wrap(pods)), agent.WithStatusSink(&statuses),
						agent.WithRecorder(noting(func(e *corev1.Event) {
							if e.Reason == podspec.ReasonPreempted {
								events = append(events, e.InvolvedObject.Name+": "+e.Message)
							}
						})))
				}
				a := run()
				time.Sleep(time.Minute)
				require.Len(t, n.Running(), 2)

				pods.Put(critical)
				synctest.Wait()
				time.Sleep(5 * time.Second)
				running := n.Running()
				slices.Sort(running)
				require.Equal(t, []string{"large", "small"}, running, "the victim has its grace period")
				require.Equal(t, "Waiting until other pods have ended: default/large", statuses.Of("critical").Message)
				require.Equal(t, corev1.PodPending, statuses.Of("critical").Phase)
				if tc.restart {
					a.Stop()
					a = run()
				}
				time.Sleep(time.Minute)
				running = n.Running()
				slices.Sort(running)
				require.Equal(t, []string{"critical", "small"}, running)
				require.Equal(t, corev1.PodRunning, statuses.Of("critical").Phase)
				require.Empty(t, statuses.Of("critical").Reason)
				victim := statuses.Of("large")
				require.Equal(t, []string{"Failed", "Preempting", "Preempted in order to admit critical pod"}, []string{string(victim.Phase), victim.Reason, victim.Message})
				require.True(t, slices.ContainsFunc(victim.Conditions, func(c corev1.PodCondition) bool {
					return c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonTerminationByKubelet
				}))
				assert.Equal(t, []string{"large: Preempted in order to admit critical pod"}, events, "once")
				require.Equal(t, tc.retried, len(a.PodProblems()) == 1 && !a.PodProblems()[0].NextAttempt.IsZero())

				pods.Delete("default", "critical")
				time.Sleep(10 * time.Minute)
				require.Equal(t, tc.retried, slices.Contains(n.Running(), "large"), "a static pod runs again when there is room")
				a.Stop()
			})
		})
	}
}
