package stats_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/stats"
)

func TestBoot(t *testing.T) {
	for name, tc := range map[string]struct {
		stat string
		want time.Time
	}{
		"told":     {"cpu  1 2 3\nctxt 9\nbtime 1700000000\nprocesses 5\n", time.Unix(1700000000, 0)},
		"not told": {"cpu  1 2 3\n", time.Time{}},
		"absurd":   {"btime 99999999999999999\n", time.Time{}},
	} {
		p, err := stats.New(stats.Config{Proc: files(map[string]string{"stat": tc.stat}), Cgroups: files(nil)})
		require.NoError(t, err)
		assert.Equal(t, tc.want, p.Boot(), name)
	}
}

// The name of the group of all pods may be known only after the runtime was asked.
func TestGroupOfAllPodsIsFoundLater(t *testing.T) {
	name := ""
	p, err := stats.New(stats.Config{FindAllPods: func() string { return name }, Proc: proc(), Cgroups: files(map[string]string{
		"memory/kubepods.slice/memory.usage_in_bytes": "1000\n", "memory/kubepods.slice/memory.limit_in_bytes": "4096\n",
		"memory/kubepods.slice/memory.stat": "total_inactive_file 200\n",
	})})
	require.NoError(t, err)
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.True(t, u.AllPods.At.IsZero())
	name = "/kubepods.slice"
	u, err = p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.Equal(t, uint64(4096), u.AllPods.Capacity)
	assert.Equal(t, uint64(800), u.AllPods.WorkingSet)
}
