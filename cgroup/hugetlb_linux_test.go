package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Reserved huge pages are limited as those in use are: a process that reserves more takes them from other pods. Where the kernel has no
// such limit, the other one is set all the same.
func TestSet_LimitsReservedHugePages(t *testing.T) {
	for _, tc := range []struct{ dir, max, reserved string }{
		{"kubepods/podu1", ".max", ".rsvd.max"},
		{"hugetlb/kubepods/podu1", ".limit_in_bytes", ".rsvd.limit_in_bytes"},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, tc.dir)
		var tr tree = &v2{root: root, has: map[string]bool{"hugetlb": true}}
		if tc.max == ".limit_in_bytes" {
			huge, err := cgroup1.NewHugetlb(root)
			require.NoError(t, err)
			tr = &v1{root: root, subsystems: []cgroup1.Subsystem{huge}}
		}
		for at := dir; at != filepath.Dir(root); at = filepath.Dir(at) {
			require.NoError(t, os.MkdirAll(at, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), nil, 0o600))
		}
		for _, file := range []string{"2MB" + tc.max, "2MB" + tc.reserved, "1GB" + tc.max} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "hugetlb."+file), nil, 0o600))
		}
		require.NoError(t, tr.set("/kubepods/podu1", limits{huge: map[string]uint64{"2MB": 4 << 20, "1GB": 0}}))
		for file, want := range map[string]string{"2MB" + tc.max: "4194304", "2MB" + tc.reserved: "4194304", "1GB" + tc.max: "0"} {
			text, err := os.ReadFile(filepath.Join(dir, "hugetlb."+file))
			require.NoError(t, err)
			assert.Equal(t, want, string(text), file)
		}
		assert.NoFileExists(t, filepath.Join(dir, "hugetlb.1GB"+tc.reserved))
	}
}
