package cgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// v1 writes the cgroups of version 1, with one hierarchy per controller.
type v1 struct {
	root        string
	subsystems  []cgroup1.Subsystem
	hierarchies []string // all mounted ones; set creates cgroups in the first one, among others
	cpu, pids   string   // directories of these controllers; "" if they cannot be written
	huge        []string // huge page sizes
}

func openV1(root, parent string) (tree, []string, error) {
	t := &v1{root: root}
	var missing []string
	for _, c := range []struct {
		name string
		sub  cgroup1.Subsystem
		lost string
	}{
		{"cpu", cgroup1.NewCpu(root), "cpu weights and limits of pods"},
		{"cpuacct", cgroup1.NewCpuacct(root), ""},
		{"cpuset", &cpuset{filepath.Join(root, "cpuset")}, ""},
		{"memory", cgroup1.NewMemory(root), "memory limits of pods"},
		{"pids", cgroup1.NewPids(root), "limits on processes of pods"},
		{"freezer", cgroup1.NewFreezer(root), ""},
		{"blkio", cgroup1.NewBlkio(root), ""},
		{"perf_event", cgroup1.NewPerfEvent(root), ""},
	} {
		switch err := unix.Access(filepath.Join(root, c.name, parentOrRoot(root, c.name, parent)), unix.W_OK); {
		case err == nil:
			t.subsystems = append(t.subsystems, c.sub)
			switch c.name {
			case "cpu":
				t.cpu = filepath.Join(root, c.name)
			case "pids":
				t.pids = filepath.Join(root, c.name)
			}
		case c.lost != "":
			missing = append(missing, fmt.Sprintf("%s: controller %s: %v", c.lost, c.name, err))
		}
	}
	if len(t.subsystems) == 0 {
		return nil, nil, fmt.Errorf("no cgroup controller can be written below %s", root)
	}
	if huge, err := cgroup1.NewHugetlb(root); err == nil && isDir(filepath.Join(root, "hugetlb")) {
		t.subsystems = append(t.subsystems, huge)
		t.huge = pageSizesIn(filepath.Join(root, "hugetlb"), ".limit_in_bytes")
	}
	var err error
	if t.hierarchies, err = hierarchiesIn(root, string(t.subsystems[0].Name())); err != nil {
		return nil, nil, err
	}
	return t, missing, nil
}

// parentOrRoot returns the deepest existing directory of the path parent: the one that must
// be writable to create the rest.
func parentOrRoot(root, hierarchy, parent string) string {
	for parent != "/" && !isDir(filepath.Join(root, hierarchy, parent)) {
		parent = filepath.Dir(parent)
	}
	return parent
}

// pageSizesIn returns the huge page sizes for which a hugetlb directory has files.
func pageSizesIn(dir, suffix string) []string {
	files, err := filepath.Glob(filepath.Join(dir, "hugetlb.*B"+suffix))
	if err != nil {
		return nil
	}
	var out []string
	for _, f := range files {
		size := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "hugetlb."), suffix)
		if !strings.Contains(size, ".") && !slices.Contains(out, size) {
			out = append(out, size)
		}
	}
	return out
}

func (t *v1) hasMemoryQoS() bool { return false }

func (t *v1) rejectsLimitBelowUsage() bool { return true }

func (t *v1) memory(group string) (limit, usage int64, err error) {
	return readMemory(filepath.Join(t.root, "memory", group), "memory.limit_in_bytes", "memory.usage_in_bytes")
}

func (t *v1) fileCache(string) int64 { return 0 }

func (t *v1) quota(group string, per int64) (int64, error) {
	dir := filepath.Join(t.root, "cpu", group)
	quota, err := os.ReadFile(filepath.Join(dir, "cpu.cfs_quota_us"))
	if err != nil {
		return 0, err
	}
	period, err := os.ReadFile(filepath.Join(dir, "cpu.cfs_period_us"))
	if err != nil {
		return 0, err
	}
	return perPeriod(strings.TrimSpace(string(quota)), strings.TrimSpace(string(period)), per)
}

func (t *v1) pageSizes() []string { return t.huge }

func (t *v1) set(group string, l limits) error {
	quota, period, memory := l.quota, uint64(l.quotaPeriod()), l.memory
	if quota == 0 {
		quota = -1
	}
	if memory == 0 {
		memory = -1
	}
	created := !t.has(group) // it has no limits yet, so that there are none to reset
	res := &specs.LinuxResources{CPU: &specs.LinuxCPU{}}
	if l.quota > 0 || !created {
		res.CPU.Quota, res.CPU.Period = &quota, &period
		if err := t.releasePeriod(group, l.quotaPeriod()); err != nil {
			return err
		}
	}
	if l.memory > 0 || !created {
		res.Memory = &specs.LinuxMemory{Limit: &memory}
	}
	if l.shares > 0 {
		res.CPU.Shares = &l.shares
	}
	if l.pids > 0 {
		res.Pids = &specs.LinuxPids{Limit: &l.pids}
	}
	for size, n := range l.huge {
		res.HugepageLimits = append(res.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: size, Limit: n})
	}
	_, err := cgroup1.New(cgroup1.StaticPath(group), res, cgroup1.WithHierarchy(func() ([]cgroup1.Subsystem, error) {
		return t.subsystems, nil
	}))
	if err == nil {
		err = limitReserved(filepath.Join(t.root, "hugetlb", group), ".rsvd.limit_in_bytes", l.huge)
	}
	if err != nil || l.pids > 0 || t.pids == "" || created {
		return err
	}
	return writeControl(filepath.Join(t.pids, group, "pids.max"), "max") // resets an earlier limit
}

// releasePeriod removes the quota of a cgroup that has another period than it is to get: the files are written
// one after the other, and the old quota in the new period can be more than a cgroup above has.
func (t *v1) releasePeriod(group string, period int64) error {
	dir := filepath.Join(t.cpu, group)
	had, err := os.ReadFile(filepath.Join(dir, "cpu.cfs_period_us"))
	if err != nil || strings.TrimSpace(string(had)) == strconv.FormatInt(period, 10) {
		return nil //nolint:nilerr // there is no cgroup yet, or no controller
	}
	return writeControl(filepath.Join(dir, "cpu.cfs_quota_us"), "-1")
}

func (t *v1) weigh(group string, l limits) error {
	if t.cpu == "" {
		return nil
	}
	return writeControl(filepath.Join(t.cpu, group, "cpu.shares"), strconv.FormatUint(l.shares, 10))
}

// has reports whether a hierarchy has the cgroup.
func (t *v1) has(group string) bool {
	return slices.ContainsFunc(t.subsystems, func(s cgroup1.Subsystem) bool {
		return isDir(filepath.Join(t.root, string(s.Name()), group))
	})
}

// dirs returns the directories in all hierarchies. Runtimes also create the directory of
// their parent in those that this package does not set up, such as systemd's.
func (t *v1) dirs(group string) []string {
	out := make([]string, len(t.hierarchies))
	for i, h := range t.hierarchies {
		out[i] = filepath.Join(h, group)
	}
	return out
}

func (t *v1) release(context.Context, string) error { return nil }

// hierarchiesIn returns the hierarchies that are mounted below root, the given one first.
// Links such as cpu to cpu,cpuacct are resolved, so that each is returned once.
func hierarchiesIn(root, first string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	out := []string{filepath.Join(root, first)}
	listed := map[string]bool{realPath(out[0]): true}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if real := realPath(dir); !listed[real] && isDir(dir) {
			listed[real] = true
			out = append(out, dir)
		}
	}
	return out, nil
}

// realPath resolves symbolic links. It returns path unchanged on error.
func realPath(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path
	}
	return real
}
