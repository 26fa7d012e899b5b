package podspec

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestHugePageSize(t *testing.T) {
	const two, large = "resources: {limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}", "resources: {limits: {memory: 1Gi, hugepages-1Gi: 1Gi, hugepages-2Mi: 2Mi}}"
	inPod := one + "  resources: {limits: {memory: 1Gi, hugepages-1Gi: 1Gi}}\n"
	inInit := one + "  initContainers: [{name: i, image: x, " + two + "}]\n"
	for _, tc := range []struct {
		name, spec string
		medium     corev1.StorageMedium
		want       int64
		err        string
	}{
		{"the only size", with(two), "HugePages", 2 << 20, ""},
		{"of an init container", inInit, "HugePages", 2 << 20, ""},
		{"of the pod", inPod, "HugePages-1Gi", 1 << 30, ""},
		{"one of several", with(large), "HugePages-1Gi", 1 << 30, ""},
		{"in other words", with(two), "HugePages-2048Ki", 2 << 20, ""},
		{"none", one, "HugePages", 0, "no container requests huge pages"},
		{"several", with(large), "HugePages", 0, "pages of more than one size"},
		{"another", with(two), "HugePages-1Gi", 0, "medium HugePages-1Gi: no container requests hugepages-1Gi"},
		{"no size", with(two), "HugePages-", 0, "names no page size"},
		{"no number", with(two), "HugePages-big", 0, "names no page size"},
		{"nothing", with(two), "HugePages-0", 0, "names no page size"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.True(t, IsHugePageMedium(tc.medium))
			size, err := HugePageSize(podWith(t, tc.spec), tc.medium)
			assert.Equal(t, tc.want, size)
			if tc.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.err)
		})
	}
	for _, medium := range []corev1.StorageMedium{"", "Memory", "HugePages2Mi", "hugepages"} {
		assert.False(t, IsHugePageMedium(medium), medium)
	}
}
