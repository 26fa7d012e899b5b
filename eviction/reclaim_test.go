package eviction_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
)

// useImages has a pod's image in use while the pod is there, and removed by a reclaim then.
func useImages(s *nodeSimulator, sizes map[types.UID]uint64) {
	for _, size := range sizes {
		s.images += size
	}
	s.onReclaim = func() {
		for uid, size := range sizes {
			if s.pods[uid] != nil {
				s.images += size
			}
		}
	}
}

// EV-4: the image of an evicted pod is reclaimed before the next pod is evicted.
func TestManager_ReclaimsImageOfEvictedPod(t *testing.T) {
	for name, takes := range map[string]time.Duration{"at once": 0, "after a while": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			s := newSim()
			s.takes = takes
			cfg := eviction.Config{Thresholds: hardThresholds("nodefs.available<30%"), Reclaimers: []eviction.Reclaimer{s}}
			bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
				s.add("a", "", 0, 0).logs = 115 * mib
				s.add("b", "", 0, 0).logs = 110 * mib
				s.add("c", "", 0, 0).logs = 50 * mib
				useImages(s, map[types.UID]uint64{"a": 350 * mib, "b": 350 * mib})
				s.pause(10 * time.Minute)
				assert.Equal(t, []string{"a"}, s.victims())
				assert.Equal(t, 2, s.reclaim)
			})
		})
	}
}

// EV-4: an evicted pod that leaves after PodCleanupTimeout has images reclaimed as well.
func TestManager_ReclaimsImageOfPodThatLeavesLate(t *testing.T) {
	s := newSim()
	s.takes = time.Hour
	cfg := eviction.Config{Thresholds: hardThresholds("nodefs.available<30%"), Reclaimers: []eviction.Reclaimer{s}}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		for _, uid := range []types.UID{"a", "b", "c"} {
			s.add(uid, "", 0, 0).logs = 110 * mib
		}
		useImages(s, map[types.UID]uint64{"a": 600 * mib})
		s.pause(35 * time.Second)
		require.Equal(t, []string{"a", "b"}, s.victims())
		delete(s.pods, "a") // 180 of 300 MiB are available then, without a reclaim
		s.pause(5 * time.Minute)
		assert.Equal(t, []string{"a", "b"}, s.victims())
		assert.Equal(t, 2, s.reclaim)
	})
}

// EV-4: where nothing can be freed there is one reclaim for each pod that has left, and no more.
func TestManager_ReclaimsOncePerEviction(t *testing.T) {
	s := newSim()
	cfg := eviction.Config{Thresholds: hardThresholds("nodefs.available<60%"), Reclaimers: []eviction.Reclaimer{s}}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		for _, uid := range []types.UID{"a", "b", "c", "d", "e"} {
			s.add(uid, "", 0, 0).logs = 190 * mib
		}
		s.pause(time.Hour)
		assert.Equal(t, []string{"a", "b", "c"}, s.victims())
		assert.Equal(t, 3, s.reclaim)
	})
}

// EV-4: waiting for the effect of an eviction for memory does not take the place of a reclaim.
func TestManager_ReclaimsWhileMemoryWaits(t *testing.T) {
	s := newSim()
	cfg := eviction.Config{Thresholds: hardThresholds("memory.available<100Mi,nodefs.available<10%"), Reclaimers: []eviction.Reclaimer{s}}
	bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
		s.hidden = 500 * mib
		s.add("a", "", 0, 250*mib)
		s.add("b", "", 0, 240*mib).logs = 10 * mib
		s.onEvict = func(evictionRecord) { s.hidden += 250 * mib } // without effect
		s.pause(5 * time.Second)
		require.Equal(t, []string{"a"}, s.victims())
		s.images = 950 * mib
		m.RequestMeasurement()
		s.pause(time.Second)
		assert.Equal(t, 1, s.reclaim)
		assert.Equal(t, []string{"a"}, s.victims())
	})
}
