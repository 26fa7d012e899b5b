package eviction_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
)

func logTo(buf *logtest.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(buf, nil)) }

// EV-12: a pod that no longer exists when it is evicted counts as evicted.
func TestManager_PodNoLongerExists(t *testing.T) {
	s := newSim()
	s.failing["gone"] = fmt.Errorf("kill pod gone: %w", runtime.ErrNotFound)
	var results []error
	var ranked []eviction.Candidate
	var log logtest.Buffer
	cfg := eviction.Config{
		Thresholds: hardThresholds("memory.available<200Mi"), Logger: logTo(&log),
		Hooks: eviction.Hooks{
			Evicting: func(_ eviction.Signal, c []eviction.Candidate, _ runtime.Termination) { ranked = c },
			Evicted:  func(_ eviction.Signal, _ *corev1.Pod, _ time.Duration, err error) { results = append(results, err) },
		},
	}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		s.add("gone", "", 0, 900*mib)
		s.pause(time.Second)
		require.Len(t, ranked, 1)
		assert.Equal(t, uint64(900*mib), ranked[0].Usage)
		assert.Equal(t, []error{nil}, results, "it counts as evicted")
		assert.NotContains(t, log.String(), "pod eviction failed")
		assert.Contains(t, log.String(), `ranked="[ns/gone used 943718400 of 0 requested, priority 0, critical false]"`)
	})
}

// EV-5: a pod whose UID is active again after its eviction can be evicted again.
func TestManager_EvictsPodThatReturns(t *testing.T) {
	s := newSim()
	bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<200Mi")}, func(t *testing.T, _ *eviction.Manager) {
		s.add("static", "", 0, 900*mib)
		s.pause(20 * time.Second)
		s.add("static", "", 0, 10*mib)
		s.pause(20 * time.Second)
		s.pods["static"].memory = 900 * mib
		s.pause(20 * time.Second)
		assert.Equal(t, []string{"static", "static"}, s.victims())
	})
}

// EV-7: after an eviction for a local storage limit the node is measured again before a
// pod is evicted for a threshold.
func TestManager_MeasuresAfterEvictionForLocalLimit(t *testing.T) {
	s := newSim()
	bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<200Mi")}, func(t *testing.T, _ *eviction.Manager) {
		limited := s.add("limited", "400Mi", 0, 400*mib)
		limited.pod.Spec.Volumes, limited.volume = bounded("50Mi"), 60*mib
		s.add("other", "", 0, 450*mib)
		s.pause(time.Second)
		assert.Equal(t, []string{"limited"}, s.victims())
	})
}

// EV-3: the end of a grace period is not missed while no pod can be evicted for another
// threshold.
func TestManager_SoftThresholdBesideABlockedOne(t *testing.T) {
	s := newSim()
	cfg := eviction.Config{Thresholds: thresholds("memory.available<200Mi", "pid.available<300", "pid.available=3s", "")}
	bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
		s.hidden = 900 * mib
		s.add("forks", "", 0, 0).pids = 800
		m.RequestMeasurement()
		s.pause(100 * time.Millisecond)
		startTime := time.Now()
		assert.Equal(t, "kubelet has insufficient memory available: the pods that may be evicted use less than the missing amount", m.Conditions()[0].Message,
			"the reason is in the condition at once")
		s.pause(5 * time.Second)
		if assert.Equal(t, []string{"forks"}, s.victims()) {
			assert.InDelta(t, 3, s.evicted[0].at.Sub(startTime).Seconds(), 0.2)
		}
	})
}

// EV-4: while a disk stays short the reclaimers are called repeatedly.
func TestManager_RepeatsReclaimWhileNoPodCanBeEvicted(t *testing.T) {
	s := newSim()
	cfg := eviction.Config{Thresholds: hardThresholds("nodefs.available<10%"), Reclaimers: []eviction.Reclaimer{s}}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		s.onReclaim = func() { s.images = 950 * mib } // nothing of it is unused
		s.images = 950 * mib
		s.add("calm", "", 0, 0).logs = mib
		s.pause(10 * time.Minute)
		assert.Greater(t, s.reclaim, 10)
		assert.Empty(t, s.evicted)
	})
}

// EV-12: the usage of pods on a disk is counted before the first eviction too.
func TestManager_CountsFilesBeforeEviction(t *testing.T) {
	c := &counted{nodeSimulator: newSim(), takes: 5 * time.Second, known: 2}
	bubbleOver(t, c.nodeSimulator, c, eviction.Config{Thresholds: hardThresholds("nodefs.available<10%")}, func(t *testing.T, _ *eviction.Manager) {
		c.pause(15 * time.Second)
		c.add("full", "", 0, 0).logs = 950 * mib
		c.pause(20 * time.Second)
		require.Len(t, c.counts, 1)
		assert.Equal(t, 10*time.Second, c.counts[0].Sub(c.since[0]), "a count of the last MonitoringPeriod is new enough")
		require.Equal(t, []string{"full"}, c.victims())
		assert.GreaterOrEqual(t, c.evicted[0].at.Sub(c.counts[0]), 5*time.Second)
	})
}

// EV-13: an eviction is judged by its effect once it is completed, or not waited for any longer, and only once.
func TestManager_JudgesEvictionsOnce(t *testing.T) {
	t.Run("not completed", func(t *testing.T) {
		s, events := newSim(), &noted{}
		s.takes = time.Hour
		cfg := eviction.Config{Thresholds: hardThresholds("memory.available<100Mi"), Recorder: events, NodeName: "node"}
		bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
			s.add("a", "", 0, 500*mib)
			s.add("b", "", 0, 450*mib)
			s.pause(5 * time.Minute)
			assert.Equal(t, []string{"a", "b"}, s.victims())
			assert.Equal(t, 30*time.Second, s.evicted[1].at.Sub(s.evicted[0].at))
			assert.Equal(t, []string{
				"node EvictionThresholdMet: Reclaiming memory, because memory.available<100Mi is met: it is 50Mi",
				"node EvictionDidNotHelp: An eviction for memory.available<100Mi had no effect",
				"node EvictionBlocked: No pod is evicted for memory.available<100Mi: the last eviction had no effect and the next one is postponed",
				"node EvictionDidNotHelp: An eviction for memory.available<100Mi had no effect",
				"node EvictionBlocked: No pod is evicted for memory.available<100Mi: there is no pod that may be evicted",
			}, events.of)
		})
	})
	t.Run("not completed, with effect", func(t *testing.T) {
		s := newSim()
		s.takes = time.Hour
		bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<100Mi")}, func(t *testing.T, _ *eviction.Manager) {
			for _, uid := range []types.UID{"a", "b", "c", "d"} {
				s.add(uid, "", 0, 400*mib)
			}
			s.onEvict = func(e evictionRecord) { s.pods[e.pod.UID].memory = 0 } // its volumes are left
			s.pause(5 * time.Minute)
			if assert.Equal(t, []string{"a", "b"}, s.victims()) {
				assert.Equal(t, 30*time.Second, s.evicted[1].at.Sub(s.evicted[0].at))
			}
		})
	})
	t.Run("without effect", func(t *testing.T) {
		s, events := newSim(), &noted{}
		cfg := eviction.Config{Thresholds: hardThresholds("memory.available<100Mi"), Recorder: events, NodeName: "node"}
		bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
			s.hidden = 850 * mib
			s.add("a", "", 0, 100*mib)
			s.onEvict = func(evictionRecord) { s.hidden += 100 * mib }
			s.pause(time.Hour)
			assert.Equal(t, []string{"a"}, s.victims())
			assert.Equal(t, 1, strings.Count(strings.Join(events.of, "\n"), "EvictionDidNotHelp"), events.of)
		})
	})
	t.Run("an effect ends the postponement", func(t *testing.T) {
		s := newSim()
		bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<100Mi")}, func(t *testing.T, _ *eviction.Manager) {
			s.hidden = 200 * mib
			for i := range 8 {
				s.add(types.UID(fmt.Sprint("p", i)), "", 0, 100*mib)
			}
			s.onEvict = func(evictionRecord) { // all but the second pod's memory is taken by something else
				if s.hidden += 100 * mib; len(s.evicted) == 2 {
					s.hidden -= 50 * mib
				}
			}
			s.pause(45 * time.Second)
			require.GreaterOrEqual(t, len(s.evicted), 4)
			var gaps []time.Duration
			for i := range 3 {
				gaps = append(gaps, s.evicted[i+1].at.Sub(s.evicted[i].at).Round(time.Second))
			}
			assert.Equal(t, []time.Duration{10 * time.Second, 0, 10 * time.Second}, gaps)
		})
	})
}

// EV-8: conditions report the message of now, and pods are rejected under several
// kinds of pressure as under the worst of them.
func TestManager_SeveralConditions(t *testing.T) {
	s := newSim()
	var messages []string
	cfg := eviction.Config{
		Thresholds: hardThresholds("memory.available<200Mi,nodefs.available<10%"), PressureTransitionPeriod: time.Second,
		Hooks: eviction.Hooks{ConditionsChanged: func(list []corev1.NodeCondition) { messages = append(messages, list[0].Message) }},
	}
	bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
		assert.False(t, m.UnderPressure())
		burstable := s.add("burstable", "1Mi", 0, 10*mib).pod
		s.hidden = 900 * mib
		s.pause(11 * time.Second)
		assert.True(t, m.UnderPressure())
		assert.True(t, m.Admit(burstable, nil).Admitted)
		assert.Equal(t, []string{
			"kubelet has insufficient memory available",
			"kubelet has insufficient memory available: the pods that may be evicted use less than the missing amount",
		}, messages, "a new message is a change")
		s.images = 950 * mib
		s.pause(11 * time.Second)
		assert.False(t, m.Admit(burstable, nil).Admitted)
		s.hidden, s.images = 0, 0
		s.pause(21 * time.Second)
		assert.False(t, m.UnderPressure())
	})
}

// Events of the node need its name and a recorder.
func TestManager_NodeEventsAreOptional(t *testing.T) {
	events := &noted{}
	for name, cfg := range map[string]eviction.Config{
		"no recorder": {NodeName: "node"},
		"no name":     {Recorder: events},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim()
			var log logtest.Buffer
			cfg.Thresholds, cfg.Logger = hardThresholds("memory.available<200Mi"), logTo(&log)
			bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
				s.hidden = 900 * mib
				s.pause(time.Minute)
				assert.Contains(t, log.String(), "eviction threshold met but no pod can be evicted")
				assert.NotContains(t, log.String(), "panic")
				assert.Empty(t, events.of)
			})
		})
	}
}

// panickyRecorder panics for every event.
type panickyRecorder struct{}

func (panickyRecorder) Record(*corev1.Event) { panic("recorder") }

// AG-9: a recorder that panics prevents no eviction.
func TestManager_RecorderPanics(t *testing.T) {
	s := newSim()
	cfg := eviction.Config{Thresholds: hardThresholds("memory.available<200Mi"), Recorder: panickyRecorder{}}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		s.add("a", "", 0, 900*mib)
		s.pause(time.Second)
		assert.Equal(t, []string{"a"}, s.victims())
	})
}

// failingNode cannot be measured without its pods.
type failingNode struct{ fakeUsageProvider }

func (f *failingNode) NodeUsage(context.Context) (runtime.NodeUsage, error) {
	f.glances.Add(1)
	return runtime.NodeUsage{}, errors.New("no figures")
}

// EV-11: failed measurements are logged and repeated after MonitoringPeriod.
func TestManager_FailedMeasurements(t *testing.T) {
	t.Run("node", func(t *testing.T) {
		f := &failingNode{fakeUsageProvider{nodeSimulator: newSim()}}
		var log logtest.Buffer
		bubbleOver(t, f.nodeSimulator, f, eviction.Config{Logger: logTo(&log)}, func(t *testing.T, _ *eviction.Manager) {
			f.pause(time.Minute + time.Second)
			assert.Equal(t, int32(7), f.glances.Load())
			assert.Zero(t, f.measurements, "pods are not measured for it")
			assert.Contains(t, log.String(), `msg="measuring node usage failed" err="no figures"`)
		})
	})
	t.Run("node and pods", func(t *testing.T) {
		s := newSim()
		s.lost = true
		var log logtest.Buffer
		bubble(t, s, eviction.Config{Logger: logTo(&log)}, func(t *testing.T, _ *eviction.Manager) {
			s.pause(time.Minute + time.Second)
			assert.Equal(t, 7, s.measurements)
			assert.Contains(t, log.String(), `msg="measuring node and pod usage failed" err="no figures"`)
		})
	})
}

// EV-7: local storage limits are checked every MonitoringPeriod, however often the node is measured.
func TestManager_ChecksLocalLimitsAtTheMonitoringPeriod(t *testing.T) {
	g := &fakeUsageProvider{nodeSimulator: newSim()}
	g.add("a", "10Mi", 0, 890*mib).pod.Spec.Volumes = bounded("50Mi")
	bubbleOver(t, g.nodeSimulator, g, eviction.Config{Thresholds: hardThresholds("memory.available<100Mi")}, func(t *testing.T, _ *eviction.Manager) {
		g.pause(time.Minute)
		assert.InDelta(t, 7, g.measurements, 1)
		assert.Greater(t, g.glances.Load(), int32(100))
	})
}

// sometimes is a notifier that reports the next threshold while reports is true.
type sometimes struct{ reports atomic.Bool }

func (*sometimes) Watch(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

func (n *sometimes) UpdateThresholds(*runtime.NodeUsage, []eviction.Threshold) eviction.Signal {
	if n.reports.Load() {
		return eviction.MemoryAvailable
	}
	return ""
}

// EV-10: a threshold that the kernel no longer reports is polled.
func TestManager_PollsWhatTheKernelNoLongerReports(t *testing.T) {
	g, n := &fakeUsageProvider{nodeSimulator: newSim()}, new(sometimes)
	n.reports.Store(true)
	g.add("a", "10Mi", 0, 899*mib)
	cfg := eviction.Config{Thresholds: hardThresholds("memory.available<100Mi"), Notifiers: []eviction.ThresholdNotifier{n}}
	bubbleOver(t, g.nodeSimulator, g, cfg, func(t *testing.T, _ *eviction.Manager) {
		g.pause(time.Minute)
		require.Less(t, g.glances.Load(), int32(10))
		n.reports.Store(false)
		g.pause(time.Minute)
		assert.Greater(t, g.glances.Load(), int32(100))
	})
}
