package eviction_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
)

// softConfig has a soft threshold at 200 MiB, and a hard one at 50 MiB, of memory.
func softConfig() eviction.Config {
	return eviction.Config{
		Thresholds:        thresholds("memory.available<50Mi", "memory.available<200Mi", "memory.available=1s", ""),
		MaxPodGracePeriod: 3 * time.Minute,
	}
}

// addSlow adds a pod with a grace period that is longer than MaxPodGracePeriod.
func addSlow(s *nodeSimulator, uid types.UID, memory uint64) *simPod {
	grace := int64(time.Hour / time.Second)
	p := s.add(uid, "", 0, memory)
	p.pod.Spec.TerminationGracePeriodSeconds = &grace
	return p
}

// EV-12: for a soft threshold the next pod waits until the previous one had its grace period
// and PodCleanupTimeout. EV-13: the interval grows while pods do not end.
func TestManager_SoftThresholdWaitsForEvictedPod(t *testing.T) {
	for name, tt := range map[string]struct {
		takes time.Duration
		want  []time.Duration // after the first eviction
	}{
		"it ends within its grace period": {2 * time.Minute, []time.Duration{0}},
		"it ends during the cleanup":      {3*time.Minute + 29*time.Second, []time.Duration{0}},
		"it does not end":                 {time.Hour, []time.Duration{0, 210 * time.Second, 460 * time.Second, 830 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim()
			s.takes = tt.takes
			bubble(t, s, softConfig(), func(t *testing.T, _ *eviction.Manager) {
				for _, uid := range []types.UID{"a", "b", "c", "d"} {
					addSlow(s, uid, 220*mib)
				}
				s.pause(15 * time.Minute)
				var got []time.Duration
				for _, e := range s.evicted {
					got = append(got, e.at.Sub(s.evicted[0].at).Round(time.Second))
				}
				assert.Equal(t, tt.want, got)
			})
		})
	}
}

// EV-12: the next pod for a soft threshold goes as soon as the previous one is cleaned up, and
// another shortage does not wait for it.
func TestManager_SoftThresholdContinuesAfterCleanup(t *testing.T) {
	s := newSim()
	s.takes = 2 * time.Minute
	var took []time.Duration
	cfg := softConfig()
	cfg.Thresholds = thresholds("", "memory.available<500Mi,pid.available<300", "memory.available=1s,pid.available=1s", "")
	cfg.Hooks.Evicted = func(_ eviction.Signal, _ *corev1.Pod, d time.Duration, err error) {
		assert.NoError(t, err)
		took = append(took, d.Round(time.Second))
	}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		for _, uid := range []types.UID{"a", "b", "c", "d"} {
			addSlow(s, uid, 220*mib)
		}
		s.pause(30 * time.Second)
		require.Equal(t, []string{"a"}, s.victims())
		addSlow(s, "forks", 0).pids = 800
		s.pause(15 * time.Second)
		require.Equal(t, []string{"a", "forks"}, s.victims())
		s.pause(10 * time.Minute)
		require.Equal(t, []string{"a", "forks", "b"}, s.victims())
		assert.Equal(t, 2*time.Minute, s.evicted[2].at.Sub(s.evicted[0].at).Round(100*time.Millisecond))
		assert.Equal(t, []time.Duration{2 * time.Minute, 2 * time.Minute, 2 * time.Minute}, took)
	})
}

// EV-12: a hard threshold does not wait for a pod that was evicted for a soft one.
func TestManager_HardThresholdDoesNotWaitForSoftOne(t *testing.T) {
	s := newSim()
	s.takes = 2 * time.Minute
	bubble(t, s, softConfig(), func(t *testing.T, m *eviction.Manager) {
		addSlow(s, "a", 450*mib)
		addSlow(s, "b", 400*mib)
		s.pause(15 * time.Second)
		require.Equal(t, []string{"a"}, s.victims())
		addSlow(s, "hog", 140*mib)
		s.pods["b"].memory = 10 * mib
		s.pods["hog"].memory = 530 * mib
		m.RequestMeasurement()
		short := time.Now()
		s.pause(time.Second)
		require.Equal(t, []string{"a", "hog"}, s.victims())
		assert.Less(t, s.evicted[1].at.Sub(short), 100*time.Millisecond)
		assert.Equal(t, time.Second, s.evicted[1].termination.GracePeriod)
	})
}

// EV-12: an eviction for a soft threshold that fails late is repeated.
func TestManager_SoftEvictionFailsLate(t *testing.T) {
	s := newSim()
	s.takes, s.late = 30*time.Second, map[types.UID]error{"a": errors.New("no")}
	bubble(t, s, softConfig(), func(t *testing.T, _ *eviction.Manager) {
		addSlow(s, "a", 450*mib)
		addSlow(s, "b", 400*mib)
		s.pause(40 * time.Second)
		require.Equal(t, []string{"a", "a"}, s.victims(), "it can be chosen again")
		delete(s.late, "a")
		s.pause(5 * time.Minute)
		assert.Equal(t, []string{"a", "a"}, s.victims())
		assert.NotContains(t, s.pods, types.UID("a"))
	})
}
