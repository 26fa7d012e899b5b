package eviction_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/podspec"
)

// noted records the events of the node.
type noted struct{ of []string }

func (n *noted) Record(e *corev1.Event) {
	if e.InvolvedObject.Kind == "Node" {
		n.of = append(n.of, fmt.Sprintf("%s %s: %s", e.InvolvedObject.Name, e.Reason, e.Message))
	}
}

// EV-13: a disk that was not filled by pods evicts none, and the reason is reported.
func TestManager_EvictsNoPodForDiskUsageOfOthers(t *testing.T) {
	s, events := newSim(), &noted{}
	cfg := eviction.Config{Thresholds: hardThresholds("nodefs.available<10%"), Recorder: events, NodeName: "node", EvictCritical: true}
	bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
		for i := range 6 {
			s.add(types.UID(fmt.Sprint("p", i)), "", 0, 0).volume = 4096
		}
		s.images = 940 * mib // of the 1000
		s.pause(time.Hour)
		assert.Empty(t, s.evicted)
		disk := m.Conditions()[1]
		assert.Equal(t, corev1.ConditionTrue, disk.Status)
		assert.Equal(t, "kubelet has disk pressure: the pods that may be evicted use less than the missing amount", disk.Message)
		assert.Equal(t, []string{
			"node EvictionThresholdMet: Reclaiming ephemeral-storage, because nodefs.available<10% is met: it is 61416Ki",
			"node EvictionBlocked: No pod is evicted for nodefs.available<10%: the pods that may be evicted use less than the missing amount",
		}, events.of, "it is told once")

		s.images = 890 * mib
		s.pause(5 * time.Minute)
		s.add("big", "", 0, 0).volume = 45 * mib
		s.pause(time.Minute)
		assert.Equal(t, []string{"big"}, s.victims(), "the one that helps goes, and no other")
		s.pause(10 * time.Minute)
		assert.Equal(t, []string{"big"}, s.victims())
		assert.Equal(t, "kubelet has no disk pressure", m.Conditions()[1].Message)

		s.images = 990 * mib
		s.pause(time.Minute)
		assert.Equal(t, []string{
			"node EvictionThresholdMet: Reclaiming ephemeral-storage, because nodefs.available<10% is met: it is 66536Ki", // for big
			"node EvictionThresholdMet: Reclaiming ephemeral-storage, because nodefs.available<10% is met: it is 10216Ki",
			"node EvictionBlocked: No pod is evicted for nodefs.available<10%: the pods that may be evicted use less than the missing amount",
		}, events.of[2:], "and told anew when it comes back")
	})
}

// EV-13: evictions that do not help come further and further apart, also where what
// was measured of the pods promised that they would.
func TestManager_PostponesEvictionsWithoutEffect(t *testing.T) {
	s, events := newSim(), &noted{}
	cfg := eviction.Config{Thresholds: hardThresholds("memory.available<100Mi"), Recorder: events, NodeName: "node"}
	bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
		s.hidden = 200 * mib
		for i := range 8 {
			s.add(types.UID(fmt.Sprint("p", i)), "", 0, 100*mib)
		}
		s.onEvict = func(evictionRecord) { s.hidden += 100 * mib } // the usage is taken over by something else
		s.pause(209 * time.Second)
		require.Len(t, s.evicted, 3)
		gap := func(i int) time.Duration { return s.evicted[i].at.Sub(s.evicted[i-1].at).Round(time.Second) }
		assert.Equal(t, []time.Duration{10 * time.Second, 40 * time.Second}, []time.Duration{gap(1), gap(2)})
		assert.Contains(t, m.Conditions()[0].Message, "the last eviction had no effect")
		s.pause(time.Hour)
		require.Len(t, s.evicted, 6)
		assert.Equal(t, 2560*time.Second, gap(5), "four times as long each time")
		assert.Contains(t, events.of, "node EvictionDidNotHelp: An eviction for memory.available<100Mi had no effect")

		// One that helps sets all back.
		s.onEvict = nil
		s.hidden = 0
		clear(s.pods)
		for i := range 20 {
			s.add(types.UID(fmt.Sprint("q", i)), "", 0, 49*mib)
		}
		s.pause(time.Minute)
		require.Len(t, s.evicted, 8)
		assert.Zero(t, gap(7))
	})
}

// EV-13: while the runtime stops no container, one pod after the other is evicted ever more slowly:
// all of them end when it answers again.
func TestManager_EvictsFewPodsWhileTheRuntimeHangs(t *testing.T) {
	s := newSim()
	s.takes = time.Hour
	bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<100Mi")}, func(t *testing.T, m *eviction.Manager) {
		for i := range 10 {
			s.add(types.UID(fmt.Sprint("p", i)), "", 0, 95*mib)
		}
		s.pause(4 * time.Minute)
		if !assert.Equal(t, []string{"p0", "p1", "p2"}, s.victims()) {
			return
		}
		assert.Equal(t, 30*time.Second, s.evicted[1].at.Sub(s.evicted[0].at), "the first may be the only one that does not end")
		assert.Equal(t, 70*time.Second, s.evicted[2].at.Sub(s.evicted[1].at))
		assert.Contains(t, m.Conditions()[0].Message, "the last eviction had no effect")
		for _, e := range s.evicted { // it answers
			delete(s.pods, e.pod.UID)
		}
		s.pause(10 * time.Minute)
		assert.Len(t, s.evicted, 3)
		assert.Len(t, s.pods, 7)
	})
}

// EV-12: a pod that grows into what an eviction has freed is no reason to wait:
// what went to other pods was freed.
func TestFreedMemoryGoesToAnotherPod(t *testing.T) {
	s := newSim()
	bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<100Mi")}, func(t *testing.T, _ *eviction.Manager) {
		s.add("a", "", 0, 500*mib)
		leak := s.add("leak", "", 0, 450*mib)
		s.onEvict = func(e evictionRecord) {
			if e.pod.UID == "a" {
				leak.memory += 480 * mib
			}
		}
		s.pause(11 * time.Second)
		require.Equal(t, []string{"a", "leak"}, s.victims())
		assert.Equal(t, s.evicted[0].at, s.evicted[1].at)
	})
}

// EV-5: critical pods do not go, not even for limits of their own, unless it is
// asked for.
func TestCriticalPodsAreSpared(t *testing.T) {
	for _, evictCritical := range []bool{false, true} {
		s, events := newSim(), &noted{}
		cfg := eviction.Config{Thresholds: hardThresholds("memory.available<100Mi"), EvictCritical: evictCritical, Recorder: events, NodeName: "node"}
		bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
			limited := s.add("limited", "1Mi", 0, 1*mib)
			limited.pod.Spec.Volumes = bounded("50Mi")
			limited.volume = 60 * mib
			s.add("static", "1Mi", 0, 950*mib)
			for _, p := range s.pods {
				p.pod.Annotations = map[string]string{podspec.AnnotationSource: "file"}
			}
			s.pause(time.Minute)
			if evictCritical {
				assert.Equal(t, []string{"limited", "static"}, s.victims())
				return
			}
			assert.Empty(t, s.evicted)
			assert.Equal(t, "kubelet has insufficient memory available: there is no pod that may be evicted", m.Conditions()[0].Message)
			assert.Equal(t, []string{
				"node EvictionThresholdMet: Reclaiming memory, because memory.available<100Mi is met: it is 49Mi",
				"node EvictionBlocked: No pod is evicted for memory.available<100Mi: there is no pod that may be evicted",
			}, events.of)
		})
	}
}

// EV-13: a threshold above the capacity is ignored, because it would always be met.
func TestManager_IgnoresThresholdAboveCapacity(t *testing.T) {
	s, events := newSim(), &noted{}
	cfg := eviction.Config{Thresholds: hardThresholds("nodefs.available<1Ti,memory.available<200Mi"), Recorder: events, NodeName: "node"}
	bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
		s.add("a", "", 0, 900*mib).volume = 900 * mib
		s.add("b", "", 0, 10*mib).volume = 10 * mib
		s.pause(time.Hour)
		assert.Equal(t, []string{"a"}, s.victims(), "for memory")
		assert.Equal(t, corev1.ConditionFalse, m.Conditions()[1].Status)
		too := "node EvictionThresholdTooLarge: The threshold nodefs.available<1Ti is ignored: it is not less than the capacity"
		assert.Equal(t, []string{"node EvictionThresholdMet: Reclaiming memory, because memory.available<200Mi is met: it is 90Mi", too}, events.of)
		s.disk = 2 << 40
		s.pods["b"].volume = 3 << 39
		s.pause(time.Minute)
		assert.Equal(t, []string{"a", "b"}, s.victims(), "the disk has grown")
		s.disk = 1 << 40
		s.pause(time.Minute)
		assert.Equal(t, []string{"node EvictionThresholdMet: Reclaiming ephemeral-storage, because nodefs.available<1Ti is met: it is 512Gi", too}, events.of[2:],
			"exactly as much is too much too")
	})
}

// EV-12: a minimum reclaim beyond all that there is leaves something to run with.
func TestMinimumReclaimAboveTheCapacity(t *testing.T) {
	s := newSim()
	cfg := eviction.Config{Thresholds: thresholds("memory.available<200Mi", "", "", "memory.available=1Ti")}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		s.add("a", "", 0, 900*mib)
		s.pause(time.Minute)
		assert.Equal(t, []string{"a"}, s.victims())
		s.pause(time.Minute)
		s.add("b", "", 0, 100*mib)
		s.pause(time.Minute)
		assert.Equal(t, []string{"a"}, s.victims(), "it was resolved once nothing was in use")
	})
}

// idleReclaimer frees nothing.
type idleReclaimer struct{ calls int }

func (r *idleReclaimer) Reclaim(context.Context) error {
	r.calls++
	return nil
}

// EV-8: a disk that stays full is reported once, although unused images and containers
// are reclaimed again and again.
func TestManager_ReportsPersistentPressureOnce(t *testing.T) {
	s, events, reclaimer := newSim(), &noted{}, &idleReclaimer{}
	var log bytes.Buffer
	var changes [][]corev1.NodeCondition
	cfg := eviction.Config{
		Thresholds: hardThresholds("nodefs.available<10%"), Recorder: events, NodeName: "node",
		Reclaimers: []eviction.Reclaimer{reclaimer},
		Logger:     slog.New(slog.NewTextHandler(&log, nil)),
		Hooks:      eviction.Hooks{ConditionsChanged: func(list []corev1.NodeCondition) { changes = append(changes, list) }},
	}
	bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
		s.images = 940 * mib // of the 1000
		s.pause(time.Hour)
		assert.Greater(t, reclaimer.calls, 100)
		assert.Len(t, changes, 2, "pressure, and why no pod is evicted")
		assert.Equal(t, []string{
			"node EvictionThresholdMet: Reclaiming ephemeral-storage, because nodefs.available<10% is met: it is 60Mi",
			"node EvictionBlocked: No pod is evicted for nodefs.available<10%: there is no pod that may be evicted",
		}, events.of)
		for _, message := range []string{"node conditions changed", "reclaiming node resources", "no pod can be evicted"} {
			assert.Equal(t, 1, strings.Count(log.String(), message), message)
		}
	})
}
