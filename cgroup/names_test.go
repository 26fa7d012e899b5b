package cgroup

import (
	"path"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// A cgroup is found again as that of the pod for which it was made: as that of another pod, which is not desired, it would be
// removed with its processes.
func TestNames_AreOfOnePod(t *testing.T) {
	for _, driver := range []Driver{Cgroupfs, Systemd} {
		n := names{driver, "/"}
		for _, tier := range tiers() {
			owners := map[string]types.UID{}
			for _, want := range []types.UID{"a", "a-b", "a_b", "a-_-b_", "a_-_b-", "x5f", "_x5f", "a.b", "a.slice"} {
				group, err := n.pod(tier, want)
				require.NoError(t, err)
				require.Equal(t, n.tier(tier), path.Dir(group))
				require.Empty(t, owners[group], "%s is also that of %s", group, want)
				owners[group] = want
				got, ok := n.uid(tier, path.Base(group))
				require.True(t, ok, group)
				assert.Equal(t, want, got, group)
			}
		}
	}
	group, err := names{Systemd, "/"}.pod(tiers()[0], "a-b_c")
	require.NoError(t, err)
	assert.Equal(t, `/kubepods.slice/kubepods-poda_b\x5fc.slice`, group, "an underscore has systemd's escape")
}
