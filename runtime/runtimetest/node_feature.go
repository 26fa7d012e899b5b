package runtimetest

import (
	"os"
	"strings"

	"github.com/sublet-dev/agent/internal/mounts"
)

// nodeFeature is something of the machine that cases need. The suite runs where the
// runtime does.
type nodeFeature string

const (
	hasAppArmor  nodeFeature = "AppArmor"
	hasSELinux   nodeFeature = "SELinux"
	hasCgroupV2  nodeFeature = "cgroup v2"
	hasHugePages nodeFeature = "huge pages in cgroups"
)

// nodeHas reports whether this machine has a feature.
func nodeHas(f nodeFeature) bool {
	switch f {
	case hasAppArmor:
		b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
		return err == nil && strings.HasPrefix(string(b), "Y")
	case hasSELinux:
		return exists("/sys/fs/selinux/enforce")
	case hasCgroupV2:
		return exists("/sys/fs/cgroup/cgroup.controllers")
	case hasHugePages:
		b, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		return err == nil && strings.Contains(string(b), "hugetlb") || exists("/sys/fs/cgroup/hugetlb")
	}
	return false
}

// hugePages returns the sizes of huge pages of this machine in bytes, or ends the case as skipped if it has none: a kubelet
// sets no limits then.
func (c *CaseT) hugePages() []int64 {
	sizes := c.s.hugePages()
	if len(sizes) == 0 {
		c.skipped("needs a machine with huge pages")
	}
	return sizes
}

// firstAllowed returns the first processor or memory node that this process may use, by the name of the list in
// /proc/self/status: containers may have no others.
func firstAllowed(list string) string {
	text, _ := os.ReadFile("/proc/self/status") // it is only on Linux
	for line := range strings.Lines(string(text)) {
		if numbers, ok := strings.CutPrefix(line, list+":"); ok {
			return firstOf(strings.TrimSpace(numbers))
		}
	}
	return "0"
}

// firstOf returns the first number of a list such as 2-3,7.
func firstOf(numbers string) string {
	end := strings.IndexAny(numbers, "-,")
	if end < 0 {
		return numbers
	}
	return numbers[:end]
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// requires ends the case as skipped if this machine lacks a feature.
func (c *CaseT) requires(f nodeFeature) {
	if !c.s.nodeHas(f) {
		c.skipped("needs a machine with " + string(f))
	}
}

// isMountShared reports whether the mount that dir is on passes on what is mounted below it, so
// that a runtime can give containers a mount that gets that. Where this is unknown it is true.
func isMountShared(dir string) bool {
	shared, err := mounts.IsShared(dir)
	return err != nil || shared
}
