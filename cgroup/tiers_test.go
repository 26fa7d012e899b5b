package cgroup

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What is set for a class is that of the requests of its pods, however often a pod is set up,
// changes its requests or its class, or is removed.
func TestManager_SumsRequestsByClass(t *testing.T) {
	m, err := New(Config{Root: t.TempDir()})
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable
	classes := []corev1.PodQOSClass{corev1.PodQOSBurstable, corev1.PodQOSGuaranteed, corev1.PodQOSBestEffort}
	naive := map[types.UID]podGroup{}
	for step := range 1000 {
		uid := types.UID("abcdefgh"[random.IntN(8)])
		var now podGroup
		if random.IntN(4) > 0 {
			now = podGroup{qos: classes[random.IntN(len(classes))], group: "/pod" + string(uid), requests: requests{random.Int64N(maxMilliCPU + 1), random.Int64N(maxMemory + 1)}}
		}
		require.Equal(t, naive[uid], m.put(uid, now), "step %d", step)
		naive[uid] = now
		for _, class := range classes {
			var want requests
			for _, p := range naive {
				if p.qos == class {
					want.milli += p.milli
					want.memory += p.memory
				}
			}
			require.Equal(t, want, m.requestsOf(class), "step %d", step)
		}
		require.Equal(t, now.group != "", m.made(uid), "step %d", step)
	}
}
