package node

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDetectCapacity(t *testing.T) {
	const unlimited = "9223372036854771712\n"
	base := map[string]string{
		"proc/meminfo": "MemTotal: 8388608 kB\n", "sys/devices/system/cpu/online": "0-3,8\n",
		"proc/sys/kernel/pid_max": "4194304\n", "proc/sys/kernel/threads-max": "100000\n",
	}
	for _, tt := range []struct {
		name, group, want string
		files             map[string]string
	}{
		{name: "is that of the machine", group: "/", want: "cpu=5 memory=8Gi pid=100000"},
		{
			name: "is bounded by cgroups of version 1", group: "/a/b", want: "cpu=1500m memory=2Gi pid=500",
			files: map[string]string{
				"sys/fs/cgroup/memory/memory.limit_in_bytes": unlimited, "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "2147483648", "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "4294967296",
				"sys/fs/cgroup/pids/a/b/pids.max": "500", "sys/fs/cgroup/pids/a/pids.max": "max",
				"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
				"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "150000", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
			},
		},
		{
			name: "is bounded by cgroups of version 2", group: "/a", want: "cpu=500m memory=1Gi pid=300",
			files: map[string]string{
				"sys/fs/cgroup/memory.max": "1073741824\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/pids.max": "300\n",
				"sys/fs/cgroup/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
			},
		},
		{
			name: "has huge pages", want: "cpu=5 memory=8Gi pid=100000 hugepages-2Mi=1Gi hugepages-1Gi=0",
			files: map[string]string{"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512\n", "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for _, files := range []map[string]string{base, tt.files} {
				for name, text := range files {
					root[name] = &fstest.MapFile{Data: []byte(text)}
				}
			}
			requireResources(t, tt.want, DetectCapacity(root, tt.group))
		})
	}
}

func TestDetectCapacity_LeavesOutWhatCannotBeRead(t *testing.T) {
	got := DetectCapacity(fstest.MapFS{}, "/")
	require.Len(t, got, 1)
	assert.Positive(t, got.Cpu().Value())
	invalid := fstest.MapFS{"sys/devices/system/cpu/online": &fstest.MapFile{Data: []byte("3-0")}}
	got = DetectCapacity(invalid, "/")
	assert.Positive(t, got.Cpu().Value())
}
