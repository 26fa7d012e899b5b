package eviction_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/eviction"
)

// Another policy holds at once: a soft threshold that stays keeps what has passed of its grace
// period, and pods get the new maximum.
func TestManager_SetPolicy(t *testing.T) {
	s := newSim()
	cfg := eviction.Config{Thresholds: thresholds("", "memory.available<200Mi", "memory.available=10m", "")}
	bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
		s.add("a", "10Mi", 0, 900*mib)
		s.pause(2 * time.Minute)
		assert.Empty(t, s.evicted)
		require.ErrorContains(t, m.SetPolicy(eviction.Policy{Thresholds: []eviction.Threshold{{Signal: "unknown"}}}), `unknown signal "unknown"`)
		require.NoError(t, m.SetPolicy(eviction.Policy{
			Thresholds: thresholds("", "memory.available<200Mi", "memory.available=3m", ""), MaxPodGracePeriod: 20 * time.Second,
		}))
		s.pause(50 * time.Second)
		assert.Empty(t, s.evicted, "the grace period has not passed")
		s.pause(30 * time.Second)
		if assert.Equal(t, []string{"a"}, s.victims()) {
			assert.Equal(t, 20*time.Second, s.evicted[0].termination.GracePeriod)
		}
	})
}

// A hard threshold that is new acts without waiting for the next measurement, and a condition
// ends by the new transition period.
func TestManager_SetPolicyActsAtOnce(t *testing.T) {
	s := newSim()
	bubble(t, s, eviction.Config{Thresholds: []eviction.Threshold{}, MonitoringPeriod: time.Hour}, func(t *testing.T, m *eviction.Manager) {
		s.add("a", "10Mi", 0, 900*mib)
		s.pause(time.Minute)
		require.Empty(t, s.evicted)
		require.NoError(t, m.SetPolicy(eviction.Policy{Thresholds: hardThresholds("memory.available<200Mi"), PressureTransitionPeriod: time.Minute}))
		s.pause(time.Second)
		require.Equal(t, []string{"a"}, s.victims())
		require.True(t, isPressed(m))
		s.pause(2 * time.Minute)
		require.False(t, isPressed(m), "a minute after the pressure")
	})
}

// A threshold that is removed evicts no pod any more, although it was met.
func TestManager_SetPolicyRemoves(t *testing.T) {
	s := newSim()
	cfg := eviction.Config{Thresholds: thresholds("", "memory.available<200Mi", "memory.available=1m", "")}
	bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
		s.add("a", "10Mi", 0, 900*mib)
		s.pause(30 * time.Second)
		require.NoError(t, m.SetPolicy(eviction.Policy{Thresholds: []eviction.Threshold{}}))
		s.pause(10 * time.Minute)
		assert.Empty(t, s.evicted)
		assert.False(t, isPressed(m))
	})
}

func isPressed(m *eviction.Manager) bool {
	for _, c := range m.Conditions() {
		if c.Status == "True" {
			return true
		}
	}
	return false
}
