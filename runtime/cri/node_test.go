package cri

import (
	"io/fs"
	"os"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
)

func TestDetectNode(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	dir := &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	meminfo := file("MemTotal:        2048 kB\nMemFree: 1 kB\nSwapTotal:  1024 kB\nodd\n")
	cases := []struct {
		name string
		root fstest.MapFS
		want Node
	}{
		{"nothing to read", fstest.MapFS{}, Node{NoSwapController: true}},
		{"cgroup v2", fstest.MapFS{
			"proc/meminfo": meminfo, "sys/fs/cgroup/cgroup.controllers": file("cpu memory hugetlb pids\n"),
			"sys/kernel/mm/hugepages/hugepages-2048kB": dir, "sys/kernel/mm/hugepages/hugepages-1048576kB": dir,
		}, Node{MemoryCapacity: 2 << 20, SwapCapacity: 1 << 20, CgroupV2: true, NoSwapController: true, HugePageSizes: []string{"1GB", "2MB"}}},
		{"cgroup v1", fstest.MapFS{"sys/fs/cgroup/hugetlb": dir, "sys/kernel/mm/hugepages/hugepages-64kB": dir}, Node{NoSwapController: true, HugePageSizes: []string{"64KB"}}},
		{"no controller of huge pages", fstest.MapFS{
			"sys/fs/cgroup/cgroup.controllers": file("cpu"), "sys/kernel/mm/hugepages/hugepages-2048kB": dir,
		}, Node{CgroupV2: true, NoSwapController: true}},
		{"SELinux", fstest.MapFS{"sys/fs/selinux/enforce": file("0")}, Node{NoSwapController: true, SELinux: true}},
		{"swap of version 1", fstest.MapFS{"sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": file("1")}, Node{}},
		{"swap of version 2", fstest.MapFS{
			"sys/fs/cgroup/cgroup.controllers": file("memory"), "sys/fs/cgroup/system.slice/memory.swap.max": file("max"),
		}, Node{CgroupV2: true}},
		{"swap of this process alone", fstest.MapFS{
			"sys/fs/cgroup/cgroup.controllers": file("memory"), "sys/fs/cgroup/a/b/memory.swap.max": file("max"),
			"proc/self/cgroup": file("1:name=old:/x\n0::/a/b\n"),
		}, Node{CgroupV2: true}},
		{"no swap of this process", fstest.MapFS{
			"sys/fs/cgroup/cgroup.controllers": file("memory"), "sys/fs/cgroup/memory.swap.max": file("not of a root"), "proc/self/cgroup": file("0::/a\n"),
		}, Node{CgroupV2: true, NoSwapController: true}},
		{
			"processors that tell their heat",
			fstest.MapFS{"sys/devices/system/cpu/cpu3/thermal_throttle": dir},
			Node{NoSwapController: true, MaskedPaths: []string{"/sys/devices/system/cpu/cpu3/thermal_throttle"}},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) { assert.Equal(t, tc.want, DetectNode(tc.root)) })
	}
	here := DetectNode(os.DirFS("/"))
	assert.NoError(t, here.fill())
}

// What is configured takes precedence over what the machine has.
func TestNode_WithDetected(t *testing.T) {
	found := Node{CgroupV2: true, SELinux: true, NoSwapController: true, MemoryCapacity: 8, SwapCapacity: 4, HugePageSizes: []string{"2MB"}, MaskedPaths: []string{"/sys/a"}}
	assert.Equal(t, found, Node{}.WithDetected(found))
	set := Node{MemoryCapacity: 2, SwapCapacity: 1, HugePageSizes: []string{}, MaskedPaths: []string{"/sys/b"}, Swap: LimitedSwap}
	assert.Equal(t, Node{
		CgroupV2: true, SELinux: true, NoSwapController: true, MemoryCapacity: 2, SwapCapacity: 1, HugePageSizes: []string{}, MaskedPaths: []string{"/sys/a", "/sys/b"}, Swap: LimitedSwap,
	}, set.WithDetected(found))
	assert.Equal(t, []string{"/sys/a"}, found.MaskedPaths, "the arguments are not changed")
}

// Containers share swap only where it is limited.
func TestNode_TranslatedSwap(t *testing.T) {
	for swap, want := range map[Swap]struct {
		limits   bool
		capacity int64
	}{RuntimeDefaultSwap: {false, 0}, NoSwap: {true, 0}, LimitedSwap: {true, 4}} {
		n := Node{Swap: swap, SwapCapacity: 4}
		got := n.translated()
		assert.Equal(t, want.limits, got.LimitsSwap, swap)
		assert.Equal(t, want.capacity, got.SwapCapacity, swap)
		n.NoSwapController = true
		assert.False(t, n.translated().LimitsSwap, "the kernel cannot limit it")
	}
}
