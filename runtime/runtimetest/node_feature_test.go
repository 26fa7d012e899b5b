package runtimetest

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestFirstOf(t *testing.T) {
	for numbers, want := range map[string]string{"0": "0", "0-1": "0", "12-15,20": "12", "3,5": "3", "": ""} {
		assert.Equal(t, want, firstOf(numbers), numbers)
	}
	assert.Regexp(t, `^\d+$`, firstAllowed("Cpus_allowed_list"))
	assert.Equal(t, "0", firstAllowed("None"))
}

// Containers get limits of the sizes that the machine has, as kubelets set them.
func TestRun_LimitsTheHugePagesOfTheMachine(t *testing.T) {
	limits := func(t *testing.T, sizes ...int64) (got []string, c *CaseT) {
		synctest.Test(t, func(t *testing.T) {
			s := newSuite()
			s.logs, s.hugePages = t.TempDir(), func() []int64 { return sizes }
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
	got, c := limits(t, 64<<10, 512<<20)
	assert.Empty(t, c.failures)
	assert.Equal(t, []string{"64KB", "512MB"}, got)
	got, c = limits(t)
	assert.Empty(t, got)
	assert.Equal(t, "needs a machine with huge pages", c.skip)
}
