package podspec_test

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

func TestMemoryQoS_High(t *testing.T) {
	page := int64(os.Getpagesize())
	const mi = int64(1) << 20
	for name, tc := range map[string]struct {
		factor               float64
		request, limit, want int64
	}{
		"between request and limit":      {0.9, 100 * mi, 200 * mi, 190 * mi},
		"a factor of one is the limit":   {1, 100 * mi, 200 * mi, 200 * mi},
		"no request":                     {0.5, 0, 64 * mi, 32 * mi},
		"whole pages, rounded down":      {0.5, 0, 5 * page, 2 * page},
		"a request that is the limit":    {0.9, 64 * mi, 64 * mi, 0},
		"less than a page above":         {0.1, mi, mi + page, 0},
		"no limit":                       {0.9, mi, 0, 0},
		"off":                            {0, mi, 2 * mi, 0},
		"more is requested than allowed": {0.9, 2 * mi, mi, 0},
	} {
		assert.Equal(t, tc.want, podspec.MemoryQoS{ThrottlingFactor: tc.factor}.High(tc.request, tc.limit), name)
	}
}

func TestMemoryQoS_Reserved(t *testing.T) {
	for class, want := range map[corev1.PodQOSClass][2]int64{
		corev1.PodQOSGuaranteed: {7, 0}, corev1.PodQOSBurstable: {0, 7}, corev1.PodQOSBestEffort: {0, 7}, // no BestEffort pod has a request
	} {
		minimum, low := podspec.MemoryQoS{ReserveRequests: true}.Reserved(class, 7)
		assert.Equal(t, want, [2]int64{minimum, low}, class)
		minimum, low = podspec.MemoryQoS{ThrottlingFactor: 1}.Reserved(class, 7)
		assert.Zero(t, minimum+low, class)
	}
}

func TestMemoryQoS_Check(t *testing.T) {
	for _, factor := range []float64{0, 0.1, 1} {
		require.NoError(t, podspec.MemoryQoS{ThrottlingFactor: factor}.Check())
	}
	for _, factor := range []float64{-0.1, 1.1, math.NaN()} {
		require.ErrorContains(t, podspec.MemoryQoS{ThrottlingFactor: factor}.Check(), "must be from 0 to 1")
	}
}
