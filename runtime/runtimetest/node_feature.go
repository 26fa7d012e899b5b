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
