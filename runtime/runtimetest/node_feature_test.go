package runtimetest

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestHugePageOf(t *testing.T) {
	for dir, want := range map[string]hugePage{
		"hugepages-64kB":       {"64KB", 64 << 10},
		"hugepages-2048kB":     {"2MB", 2 << 20},
		"hugepages-524288kB":   {"512MB", 512 << 20},
		"hugepages-1048576kB":  {"1GB", 1 << 30},
		"hugepages-16777216kB": {"16GB", 16 << 30},
	} {
		got, ok := hugePageOf(dir)
		assert.True(t, ok, dir)
		assert.Equal(t, want, got)
	}
	_, ok := hugePageOf("README")
	assert.False(t, ok)
}

func TestFirstOf(t *testing.T) {
	for numbers, want := range map[string]string{"0": "0", "0-1": "0", "12-15,20": "12", "3,5": "3", "": ""} {
		assert.Equal(t, want, firstOf(numbers), numbers)
	}
	assert.Regexp(t, `^\d+$`, firstAllowed("Cpus_allowed_list"))
	assert.Equal(t, "0", firstAllowed("None"))
}

// Containers get limits of the sizes that the machine has, as kubelets set them.
func TestRun_LimitsTheHugePagesOfTheMachine(t *testing.T) {
	limits := func(t *testing.T, sizes ...hugePage) (got []string, c *CaseT) {
		synctest.Test(t, func(t *testing.T) {
			s := newSuite()
			s.logs, s.hugePages = t.TempDir(), func() []hugePage { return sizes }
			s.cc = mutant{request: onResources(func(r *v1.LinuxContainerResources) {
				for _, l := range r.GetHugepageLimits() {
					got = append(got, l.GetPageSize())
				}
			})}.proxied(t, simulatedConn(t))
			require.NoError(t, s.getImages(t.Context()))
			tc, ok := find("a container starts with limits of huge pages")
			require.True(t, ok)
			c = s.execute(t.Context(), tc)
		})
		return got, c
	}
	got, c := limits(t, hugePage{"64KB", 64 << 10}, hugePage{"512MB", 512 << 20})
	assert.Empty(t, c.failures)
	assert.Equal(t, []string{"64KB", "512MB"}, got)
	got, c = limits(t)
	assert.Empty(t, got)
	assert.Equal(t, "needs a machine with huge pages", c.skip)
}
