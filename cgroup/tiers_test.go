package cgroup

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The weight of burstable pods is that of their requests, however often a pod is set up,
// changes its requests or its class, or is removed.
func TestManager_BurstableWeightIsThatOfItsRequests(t *testing.T) {
	m, err := New(Config{Root: t.TempDir()})
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable
	classes := []corev1.PodQOSClass{corev1.PodQOSBurstable, corev1.PodQOSGuaranteed, corev1.PodQOSBestEffort}
	naive := map[types.UID]podGroup{}
	for step := range 1000 {
		uid := types.UID("abcdefgh"[random.IntN(8)])
		var now podGroup
		if random.IntN(4) > 0 {
			now = podGroup{qos: classes[random.IntN(len(classes))], group: "/pod" + string(uid), milli: random.Int64N(maxMilliCPU + 1)}
		}
		require.Equal(t, naive[uid], m.put(uid, now), "step %d", step)
		naive[uid] = now
		var want int64
		for _, p := range naive {
			if p.qos == corev1.PodQOSBurstable {
				want += p.milli
			}
		}
		require.Equal(t, want, m.burstable(), "step %d", step)
		require.Equal(t, now.group != "", m.made(uid), "step %d", step)
	}
}
