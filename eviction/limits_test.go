package eviction_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
)

// EV-7: all that are over their limits go in one look, and one that cannot be
// evicted is passed over until the next.
func TestSeveralPodsOverTheirLimits(t *testing.T) {
	s := newSim()
	s.failing["b"] = errors.New("no")
	tried := 0
	cfg := eviction.Config{Thresholds: hardThresholds("none"), Hooks: eviction.Hooks{Evicted: func(_ eviction.Signal, pod *corev1.Pod, _ time.Duration, err error) {
		if pod.UID == "b" {
			tried++
			assert.Error(t, err)
		}
	}}}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		s.pause(time.Second)
		for _, name := range []string{"a", "b", "c"} {
			p := s.add(types.UID(name), "", 0, 0)
			p.pod.Spec.Volumes, p.volume = bounded("50Mi"), 60*mib
		}
		s.pause(10 * time.Second)
		assert.ElementsMatch(t, []string{"a", "c"}, s.victims())
		assert.Equal(t, s.evicted[0].at, s.evicted[1].at)
		assert.Equal(t, 1, tried, "once a look")
		s.pause(10 * time.Second)
		assert.Equal(t, 2, tried)
	})
}

// EV-7: one pod that takes long to terminate delays no other one, nor what the node is short of.
func TestManager_EvictsAllOverTheirLimitsAtOnce(t *testing.T) {
	s := newSim()
	s.takes = time.Minute // more than PodCleanupTimeout
	var signals []eviction.Signal
	took := map[types.UID]time.Duration{}
	cfg := eviction.Config{Thresholds: hardThresholds("memory.available<100Mi"), Hooks: eviction.Hooks{
		Evicting: func(signal eviction.Signal, ranked []eviction.Candidate, _ runtime.Termination) {
			signals = append(signals, signal)
			assert.Len(t, ranked, 1)
		},
		Evicted: func(_ eviction.Signal, pod *corev1.Pod, duration time.Duration, _ error) { took[pod.UID] = duration },
	}}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		s.pause(time.Second)
		for i := range 20 {
			p := s.add(types.UID(fmt.Sprint("p", i)), "", 0, 0)
			p.pod.Spec.Volumes, p.volume = bounded("50Mi"), 60*mib
		}
		greedy := s.add("greedy", "", 0, 0)
		s.pause(10 * time.Second)
		if !assert.Len(t, s.evicted, 20) {
			return
		}
		assert.Equal(t, eviction.EmptyDirFSLimit, signals[0])
		for _, e := range s.evicted {
			assert.Equal(t, s.evicted[0].at, e.at)
			assert.True(t, e.termination.OverLimit)
		}
		greedy.memory = 950 * mib
		s.pause(time.Until(s.evicted[0].at.Add(32 * time.Second)))
		if !assert.Len(t, s.evicted, 21, "no pod is evicted twice") {
			return
		}
		assert.Equal(t, "greedy", s.victims()[20])
		assert.Equal(t, eviction.MemoryAvailable, signals[20])
		assert.Equal(t, 30*time.Second, took["p7"])
	})
}

// EV-7: the time that an eviction took is its own.
func TestManager_TimesEachEvictionForALimit(t *testing.T) {
	s := newSim()
	took := map[types.UID]time.Duration{}
	cfg := eviction.Config{Thresholds: hardThresholds("none"), Hooks: eviction.Hooks{Evicted: func(_ eviction.Signal, pod *corev1.Pod, duration time.Duration, _ error) {
		took[pod.UID] = duration
	}}}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		s.pause(time.Second)
		s.onEvict = func(e evictionRecord) {
			s.takes = map[types.UID]time.Duration{"a": 20 * time.Second, "b": time.Second}[e.pod.UID]
		}
		for _, uid := range []types.UID{"a", "b"} {
			p := s.add(uid, "", 0, 0)
			p.pod.Spec.Volumes, p.volume = bounded("50Mi"), 60*mib
		}
		s.pause(40 * time.Second)
		assert.Equal(t, map[types.UID]time.Duration{"a": 20 * time.Second, "b": time.Second}, took)
	})
}
