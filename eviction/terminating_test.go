package eviction_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/eviction"
)

// deleteIn has a pod deleted by a client, with a grace period.
func deleteIn(p *simPod, grace time.Duration) {
	end, seconds := metav1.NewTime(time.Now().Add(grace)), int64(grace/time.Second)
	p.pod.DeletionTimestamp, p.pod.DeletionGracePeriodSeconds = &end, &seconds
}

// EV-5: a hard threshold ends a deleted pod earlier if it ranks first and has longer than the
// grace period of an eviction, and does so once. A soft threshold does not.
func TestManager_DeletedPods(t *testing.T) {
	hard := hardThresholds("memory.available<200Mi")
	soft := thresholds("", "memory.available<200Mi", "memory.available=1s", "")
	for name, tt := range map[string]struct {
		thresholds []eviction.Threshold
		grace      time.Duration
		want       []string
	}{
		"hard, an hour is left":      {hard, time.Hour, []string{"deleted"}},
		"hard, two seconds are left": {hard, 2 * time.Second, []string{"deleted"}},
		"hard, one second is left":   {hard, time.Second, []string{"innocent"}},
		"hard, none is left":         {hard, 0, []string{"innocent"}},
		"soft, an hour is left":      {soft, time.Hour, []string{"innocent"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim()
			s.takes = 3 * time.Second
			bubble(t, s, eviction.Config{Thresholds: tt.thresholds}, func(t *testing.T, _ *eviction.Manager) {
				deleteIn(s.add("deleted", "", 0, 600*mib), tt.grace)
				s.add("innocent", "", 10, 300*mib)
				s.pause(time.Minute)
				assert.Equal(t, tt.want, s.victims())
				for _, e := range s.evicted {
					assert.Equal(t, time.Second, e.termination.GracePeriod)
				}
			})
		})
	}
}

// EV-5, EV-12: a deleted pod that does not end in its shortened grace period is not chosen again.
func TestManager_ShortensGracePeriodOnce(t *testing.T) {
	s := newSim()
	s.takes = time.Hour
	bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<200Mi")}, func(t *testing.T, _ *eviction.Manager) {
		deleteIn(s.add("deleted", "", 0, 600*mib), 2*time.Hour)
		s.add("other", "", 10, 300*mib)
		s.pause(10 * time.Minute)
		assert.Equal(t, []string{"deleted", "other"}, s.victims())
		assert.Equal(t, 30*time.Second, s.evicted[1].at.Sub(s.evicted[0].at))
	})
}

// EV-5: a deleted pod that uses what is missing is evicted where no other pod helps.
func TestManager_DeletedPodAlone(t *testing.T) {
	s := newSim()
	bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<200Mi")}, func(t *testing.T, m *eviction.Manager) {
		deleteIn(s.add("deleted", "", 0, 900*mib), time.Hour)
		s.pause(time.Minute)
		assert.Equal(t, []string{"deleted"}, s.victims())
	})
}

// EV-5: a hard threshold ends a pod earlier that was evicted for a soft one. The first of the
// evictions is reported as superseded, and the effect of the last one counts.
func TestManager_HardThresholdShortensSoftEviction(t *testing.T) {
	s := newSim()
	s.takes = 2 * time.Minute
	type result struct {
		took time.Duration
		err  string
	}
	var results []result
	cfg := softConfig()
	cfg.Hooks.Evicted = func(_ eviction.Signal, pod *corev1.Pod, d time.Duration, err error) {
		r := result{took: d.Round(time.Second)}
		if err != nil {
			r.err = err.Error()
		}
		results = append(results, r)
	}
	bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
		hog := addSlow(s, "hog", 600*mib)
		addSlow(s, "innocent", 250*mib).pod.Spec.Priority = new(int32(10))
		s.pause(20 * time.Second)
		require.Equal(t, []string{"hog"}, s.victims())
		hog.memory, s.takes = 740*mib, time.Second
		m.RequestMeasurement()
		s.pause(10 * time.Minute)
		require.Equal(t, []string{"hog", "hog"}, s.victims())
		assert.Equal(t, 3*time.Minute, s.evicted[0].termination.GracePeriod)
		assert.Equal(t, time.Second, s.evicted[1].termination.GracePeriod)
		require.Len(t, results, 2)
		assert.Equal(t, "the pod is evicted with a shorter grace period", results[0].err)
		assert.Equal(t, result{took: time.Second}, results[1])
	})
}

// EV-12: a pod whose shortening fails keeps terminating, and another one is evicted.
func TestManager_ShorteningFails(t *testing.T) {
	s := newSim()
	s.failing["deleted"] = errors.New("no")
	bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<200Mi")}, func(t *testing.T, _ *eviction.Manager) {
		deleteIn(s.add("deleted", "", 0, 600*mib), time.Hour)
		s.add("other", "", 10, 300*mib)
		s.pause(5 * time.Second)
		assert.Equal(t, []string{"other"}, s.victims())
	})
}
