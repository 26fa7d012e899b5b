package agent_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
)

// slowInspection delays the inspection of one pod.
type slowInspection struct {
	*cri.Client
	uid  types.UID
	take time.Duration
}

func (s slowInspection) Pod(ctx context.Context, uid types.UID) (runtime.Pod, error) {
	if uid == s.uid {
		select {
		case <-time.After(s.take):
		case <-ctx.Done():
			return runtime.Pod{}, context.Cause(ctx)
		}
	}
	return s.Client.Pod(ctx, uid)
}

// SL-3, ST-5: running pods are adopted before a new pod is admitted, whichever source
// contains them and however long their inspection takes.
func TestAgent_AdoptsRunningPodsBeforeAdmission(t *testing.T) {
	old, added := agenttest.SizedPod("old", "1Mi", "0s=1Mi"), agenttest.SizedPod("added", "1Mi", "0s=1Mi") // the UID of added sorts first
	for name, take := range map[string]time.Duration{
		"inspected at once":                    0,
		"inspected before the agent begins":    time.Second,
		"inspected after the agent has begun":  7 * time.Second,
		"inspected after several failed tries": time.Hour,
	} {
		for sources, opts := range map[string]func() []agent.Option{
			"of one source": func() []agent.Option {
				return []agent.Option{agent.WithSource("memory", podsource.NewMemory(old, added))}
			},
			"of two sources": func() []agent.Option {
				return []agent.Option{agent.WithSource("first", podsource.NewMemory(added)), agent.WithSource("memory", podsource.NewMemory(old))}
			},
		} {
			t.Run(name+" "+sources, func(t *testing.T) {
				agenttest.OnMachine(t, node.Config{MaxPods: 1}, func(t *testing.T, n *agenttest.Machine) {
					a := n.Start(agent.WithSource("memory", podsource.NewMemory(old)))
					time.Sleep(time.Minute)
					require.Equal(t, []string{"old"}, n.Running())
					a.Stop()

					var statuses agenttest.Statuses
					a = n.StartOn(slowInspection{n.Client, old.UID, take}, append(opts(), agent.WithStatusSink(&statuses))...)
					time.Sleep(10 * time.Minute)
					assert.Equal(t, []string{"old"}, n.Running(), "MaxPods is 1")
					assert.Equal(t, "OutOfpods", statuses.Of("added").Reason)
					assert.NotEqual(t, corev1.PodFailed, statuses.Of("old").Phase)
					a.Stop()

					a = n.Start(agent.WithSource("memory", podsource.NewMemory(old)))
					time.Sleep(time.Minute)
					assert.Equal(t, []string{"old"}, n.Running(), "the next agent does not touch it either")
					a.Stop()
				})
			})
		}
	}
}

// exhausted is a node that is always short of memory.
type exhausted struct{}

func (exhausted) Usage(context.Context, time.Time) (runtime.NodeUsage, error) {
	return runtime.NodeUsage{Memory: runtime.MemoryUsage{At: time.Now(), Capacity: 1 << 30, Usage: 1 << 30, WorkingSet: 1 << 30}}, nil
}

// SR-3, EV-9: whether the pods of a source are static does not depend on its name.
func TestAgent_StaticPodsAreThoseOfAStaticSource(t *testing.T) {
	best := agenttest.SizedPod("best", "1Mi", "0s=1Mi")
	best.Spec.Containers[0].Resources, best.Status = corev1.ResourceRequirements{}, corev1.PodStatus{}
	for name, tc := range map[string]struct {
		source string
		wrap   func(podsource.Source) podsource.Source
		phase  corev1.PodPhase
	}{
		"a memory source":              {"memory", func(s podsource.Source) podsource.Source { return s }, corev1.PodRunning},
		"the same, named api":          {"api", func(s podsource.Source) podsource.Source { return s }, corev1.PodRunning},
		"one whose pods are not":       {"memory", podsource.NotStatic, corev1.PodFailed},
		"the same with the name api":   {"api", podsource.NotStatic, corev1.PodFailed},
		"the same with the name a/b/c": {"a/b/c", podsource.NotStatic, corev1.PodFailed},
	} {
		t.Run(name, func(t *testing.T) {
			inside(t, func(t *testing.T, _ *embedded.Runtime, _ *cri.Client, start func(...agent.Option) *agent.Agent) {
				var statuses agenttest.Statuses
				pods := podsource.NewMemory()
				start(agent.WithSource(tc.source, tc.wrap(pods)), agent.WithStatusSink(&statuses), agent.WithConfig(eviction.Config{Usage: exhausted{}}))
				time.Sleep(30 * time.Second)
				pods.Put(best)
				time.Sleep(5 * time.Second)
				assert.Equal(t, tc.phase, statuses.Of("best").Phase)
			})
		})
	}
}

// SL-3, SR-8: a running pod counts for the limit of pods until its source has synced
// without it.
func TestAgent_CountsRunningPodsOfAnUnsyncedSource(t *testing.T) {
	agenttest.OnMachine(t, node.Config{MaxPods: 1}, func(t *testing.T, n *agenttest.Machine) {
		a := n.Start(agent.WithSource("late", podsource.NewMemory(agenttest.SizedPod("old", "1Mi", "0s=1Mi"))))
		time.Sleep(time.Minute)
		a.Stop()

		source := make(lateSource)
		pods := podsource.NewMemory(agenttest.SizedPod("early", "1Mi", "0s=1Mi"))
		a = n.Start(agent.WithSource("memory", pods), agent.WithSource("late", source))
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"old"}, n.Running())

		close(source)
		synctest.Wait()
		pods.Put(agenttest.SizedPod("next", "1Mi", "0s=1Mi"))
		time.Sleep(time.Minute)
		assert.Len(t, n.Running(), 1)
		assert.NotContains(t, n.Running(), "old")
		a.Stop()
	})
}

// licences is a soft admitter that rejects pods during an interval, after a delay.
type licences struct {
	from, to time.Time
	takes    time.Duration
}

func (l licences) Admit(ctx context.Context, _ *corev1.Pod) (podspec.AdmitResult, error) {
	select {
	case <-time.After(l.takes):
	case <-ctx.Done(): // no goroutine may be left at the end of the bubble
		return podspec.AdmitResult{}, context.Cause(ctx)
	}
	if now := time.Now(); now.Before(l.from) || now.After(l.to) {
		return podspec.Admitted(), nil
	}
	return podspec.Rejected("NoLicence", "all are in use"), nil
}

// history is a sink that records each change of the phase and reason of one pod.
type history struct {
	mu    sync.Mutex
	lines []string
	sends int
}

func (h *history) SetStatus(_ context.Context, _ *corev1.Pod, st corev1.PodStatus) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sends++
	if line := string(st.Phase) + " " + st.Reason; len(h.lines) == 0 || h.lines[len(h.lines)-1] != line {
		h.lines = append(h.lines, line)
	}
	return nil
}

func (h *history) take() (lines []string, sends int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lines, sends = h.lines, h.sends
	h.lines, h.sends = nil, 0
	return lines, sends
}

// PS-1, ST-6: a pod that a soft admitter rejects is reported as Blocked once. It waits
// indefinitely, also after a restart of the agent, and starts when it is admitted,
// whatever its restart policy.
func TestAgent_BlockedPodWaits(t *testing.T) {
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever} {
		for name, between := range map[string]bool{"": false, " over a restart of the agent": true} {
			t.Run(string(policy)+name, func(t *testing.T) {
				agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
					pod := agenttest.SizedPod("web", "1Mi", "0s=1Mi")
					pod.Spec.RestartPolicy = policy
					var sent history
					now := time.Now()
					run := func() *agenttest.Process {
						return n.Start(agent.WithStatusSink(&sent), agent.WithSource("memory", podsource.NewMemory(pod)),
							agent.WithSoftAdmitter(licences{now.Add(time.Minute), now.Add(10 * time.Minute), time.Second}))
					}
					a := run()
					time.Sleep(50 * time.Second)
					require.Equal(t, []string{"web"}, n.Running())
					sent.take()

					time.Sleep(3 * time.Minute)
					lines, sends := sent.take()
					require.Equal(t, []string{"Pending Blocked"}, lines)
					require.LessOrEqual(t, sends, 3, "on rejection, after its termination, and after its cleanup")
					require.Empty(t, n.Running())
					if between {
						a.Stop()
						a = run()
						time.Sleep(time.Minute)
						lines, _ = sent.take()
						require.Equal(t, []string{"Pending Blocked"}, lines)
					}
					time.Sleep(5 * time.Minute)
					_, sends = sent.take()
					require.Zero(t, sends, "nothing is new")

					time.Sleep(5 * time.Minute)
					lines, _ = sent.take()
					require.Equal(t, "Running ", lines[len(lines)-1])
					require.NotContains(t, lines, "Failed ")
					require.Equal(t, []string{"web"}, n.Running())
					a.Stop()
				})
			})
		}
	}
}

// spiking is a node of 1 GiB that is under memory pressure while spike is true. One pod
// uses all of it.
type spiking struct {
	uid   types.UID
	spike atomic.Bool
}

func (s *spiking) Usage(context.Context, time.Time) (runtime.NodeUsage, error) {
	now, used := time.Now(), uint64(300<<20)
	if s.spike.Load() {
		used = 1000 << 20
	}
	m := runtime.MemoryUsage{At: now, Capacity: 1 << 30, Usage: used, WorkingSet: used}
	return runtime.NodeUsage{Memory: m, Pods: []runtime.PodUsage{{UID: s.uid, Memory: m}}}, nil
}

// SL-11, EV-8: an evicted static pod is reported as a problem, and does not make the agent
// unhealthy. It starts again under its UID when the pressure has ended, also after a
// restart of the agent. A pod that is not static stays Failed.
func TestAgent_RestartsEvictedStaticPod(t *testing.T) {
	for name, tc := range map[string]struct {
		restart  bool
		wrap     func(podsource.Source) podsource.Source
		restarts bool
	}{
		"in one process":             {false, func(s podsource.Source) podsource.Source { return s }, true},
		"in the next process":        {true, func(s podsource.Source) podsource.Source { return s }, true},
		"not if it is not static":    {false, podsource.NotStatic, false},
		"nor is it after a restart ": {true, podsource.NotStatic, false},
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
				pod := agenttest.SizedPod("web", "1Mi", "0s=1Mi")
				pod.Spec.RestartPolicy = corev1.RestartPolicyNever
				usage := &spiking{uid: pod.UID}
				var events atomic.Int32
				run := func() *agenttest.Process {
					return n.Start(agent.WithSource("memory", tc.wrap(podsource.NewMemory(pod))),
						agent.WithConfig(eviction.Config{Thresholds: hardThresholds("memory.available<200Mi"), Usage: usage, PressureTransitionPeriod: time.Minute, EvictCritical: true}),
						agent.WithRecorder(noting(func(e *corev1.Event) {
							if strings.Contains(e.Message, "next attempt in 10s") {
								events.Add(1)
							}
						})))
				}
				a := run()
				time.Sleep(time.Minute)
				require.Empty(t, a.PodProblems())
				usage.spike.Store(true)
				time.Sleep(30 * time.Second)
				require.Empty(t, n.Running())
				problems := a.PodProblems()
				require.Len(t, problems, 1)
				require.ErrorContains(t, problems[0], "pod default/web: Evicted: The node was low on resource: memory")
				require.Equal(t, tc.restarts, !problems[0].NextAttempt.IsZero())
				require.Equal(t, tc.restarts, strings.Contains(problems[0].Error(), "next attempt at"))
				require.WithinDuration(t, time.Now(), problems[0].Since, time.Minute)
				require.NoError(t, a.Healthy())
				require.Equal(t, tc.restarts, events.Load() > 0)
				if tc.restart {
					a.Stop()
					a = run()
				}
				time.Sleep(10 * time.Minute)
				require.Empty(t, n.Running(), "the pressure lasts")
				require.Len(t, a.PodProblems(), 1)

				usage.spike.Store(false)
				time.Sleep(30 * time.Second)
				require.Empty(t, n.Running(), "the condition holds for the transition period")
				time.Sleep(5 * time.Minute)
				if tc.restarts {
					require.Equal(t, []string{"web"}, n.Running())
					require.Empty(t, a.PodProblems())
					require.Equal(t, corev1.PodRunning, a.Pods()[0].Status.Phase)
				} else {
					time.Sleep(2 * time.Hour)
					require.Empty(t, n.Running())
					require.Len(t, a.PodProblems(), 1)
				}
				a.Stop()
			})
		})
	}
}

// SL-11: the rejection of a static pod ends with its reason; that of another pod is final.
func TestAgent_RejectionOfAStaticPodIsNotFinal(t *testing.T) {
	for name, tc := range map[string]struct {
		wrap     func(podsource.Source) podsource.Source
		restarts bool
	}{
		"static":     {func(s podsource.Source) podsource.Source { return s }, true},
		"not static": {podsource.NotStatic, false},
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
				source := func() agent.Option {
					return agent.WithSource("memory", tc.wrap(podsource.NewMemory(agenttest.SizedPod("web", "1Mi", "0s=1Mi"))))
				}
				for range 2 { // also after a restart
					a := n.Start(source(), agent.WithAdmitter(admitFunc(func(*corev1.Pod) bool { return false })))
					time.Sleep(time.Hour)
					problems := a.PodProblems()
					require.Len(t, problems, 1)
					require.ErrorContains(t, problems[0], "AdmissionDenied: Pod was rejected: admission denied")
					require.Equal(t, tc.restarts, !problems[0].NextAttempt.IsZero())
					require.NoError(t, a.Healthy())
					a.Stop()
				}
				a := n.Start(source())
				time.Sleep(time.Minute)
				require.Equal(t, tc.restarts, len(n.Running()) == 1)
				require.Equal(t, tc.restarts, len(a.PodProblems()) == 0)
				a.Stop()
			})
		})
	}
}
