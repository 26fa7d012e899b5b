package eviction_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
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
		assert.Equal(t, []string{"a", "c"}, s.victims())
		assert.Equal(t, s.evicted[0].at, s.evicted[1].at)
		assert.Equal(t, 1, tried, "once a look")
		s.pause(10 * time.Second)
		assert.Equal(t, 2, tried)
	})
}
