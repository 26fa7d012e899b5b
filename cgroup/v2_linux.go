package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup2"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/hugepages"
)

// v2 writes the cgroups of version 2, with one hierarchy.
type v2 struct {
	root string
	has  map[string]bool // available controllers
	huge []string        // huge page sizes
}

func openV2(root, parent string) (tree, []string, error) {
	at := filepath.Join(root, parentOrRoot(root, "", parent))
	if err := unix.Access(at, unix.W_OK); err != nil {
		return nil, nil, explained(fmt.Errorf("%s cannot be written: %w", at, err))
	}
	data, err := os.ReadFile(filepath.Join(at, "cgroup.controllers"))
	if err != nil {
		return nil, nil, err
	}
	t := &v2{root: root, has: make(map[string]bool)}
	for c := range strings.FieldsSeq(string(data)) {
		t.has[c] = true
	}
	var missing []string
	for _, c := range [][2]string{
		{"cpu", "cpu weights and limits of pods"},
		{"memory", "memory limits of pods"},
		{"pids", "limits on processes of pods"},
	} {
		if !t.has[c[0]] {
			missing = append(missing, fmt.Sprintf("%s: controller %s is not in %s/cgroup.controllers; delegate it (Delegate= of a systemd unit)", c[1], c[0], at))
		}
	}
	if t.has["hugetlb"] {
		t.huge = t.kernelPageSizes()
	}
	return t, missing, nil
}

// kernelPageSizes returns the huge page sizes of the machine, because the root cgroup of v2
// has no hugetlb files.
func (t *v2) kernelPageSizes() []string {
	var out []string
	for _, size := range hugepages.Sizes(os.DirFS("/")) {
		out = append(out, hugepages.Name(size))
	}
	slices.Sort(out)
	return out
}

func (t *v2) hasMemoryQoS() bool { return t.has["memory"] }

func (t *v2) rejectsLimitBelowUsage() bool { return false }

func (t *v2) memory(group string) (limit, usage int64, err error) {
	return readMemory(filepath.Join(t.root, group), "memory.max", "memory.current")
}

func (t *v2) fileCache(group string) (n int64) {
	data, err := os.ReadFile(filepath.Join(t.root, group, "memory.stat"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if bytes, err := strconv.ParseInt(value, 10, 64); err == nil && (name == "active_file" || name == "inactive_file") {
			n += bytes
		}
	}
	return n
}

// readMemory returns the limit in a directory, 0 without one, and the usage.
func readMemory(dir, limitFile, usageFile string) (limit, usage int64, err error) {
	if limit, err = readBytes(filepath.Join(dir, limitFile)); err != nil {
		return 0, 0, err
	}
	if usage, err = readBytes(filepath.Join(dir, usageFile)); err != nil {
		return 0, 0, err
	}
	return limit, usage, nil
}

// readBytes returns the number in a file, 0 for one that stands for no limit.
func readBytes(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(data))
	if text == "max" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n >= maxMemory {
		return 0, err
	}
	return n, nil
}

func (t *v2) quota(group string, per int64) (int64, error) {
	data, err := os.ReadFile(filepath.Join(t.root, group, "cpu.max"))
	if err != nil {
		return 0, err
	}
	quota, period, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	if quota == "max" {
		return 0, nil
	}
	return perPeriod(quota, period, per)
}

// perPeriod converts a quota of the kernel, in µs per period, to one per another period.
func perPeriod(quota, period string, per int64) (int64, error) {
	q, err := strconv.ParseInt(quota, 10, 64)
	if err != nil || q <= 0 {
		return 0, err
	}
	p, err := strconv.ParseInt(period, 10, 64)
	if err != nil || p <= 0 {
		return 0, fmt.Errorf("invalid period %q", period)
	}
	return int64(float64(q) * float64(per) / float64(p)), nil
}

func (t *v2) pageSizes() []string { return t.huge }

func (t *v2) set(group string, l limits) error {
	created := !exists(t, group) // it has no limits yet, so that there are none to reset
	res := &cgroup2.Resources{}
	if t.has["cpu"] {
		res.CPU = &cgroup2.CPU{}
		switch {
		case l.quota > 0:
			period := uint64(l.quotaPeriod())
			res.CPU.Max = cgroup2.NewCPUMax(&l.quota, &period)
		case !created:
			res.CPU.Max = cgroup2.NewCPUMax(nil, nil)
		}
		if l.shares > 0 {
			weight := weightOf(l.shares)
			res.CPU.Weight = &weight
		}
	}
	if t.has["memory"] {
		res.Memory = &cgroup2.Memory{}
		if !created || l.qos.minimum > 0 || l.qos.low > 0 {
			res.Memory.Min, res.Memory.Low = &l.qos.minimum, &l.qos.low
		}
		if l.memory > 0 {
			res.Memory.Max = &l.memory
		}
		if l.qos.high > 0 {
			res.Memory.High = &l.qos.high
		}
	}
	if t.has["pids"] {
		res.Pids = &cgroup2.Pids{Max: -1}
		if l.pids > 0 {
			res.Pids.Max = l.pids
		}
	}
	if t.has["hugetlb"] && len(l.huge) > 0 {
		huge := cgroup2.HugeTlb{}
		for size, n := range l.huge {
			huge = append(huge, cgroup2.HugeTlbEntry{HugePageSize: size, Limit: n})
		}
		res.HugeTlb = &huge
	}
	if _, err := cgroup2.NewManager(t.root, group, res); err != nil {
		return explained(err)
	}
	if t.has["hugetlb"] {
		if err := limitReserved(filepath.Join(t.root, group), ".rsvd.max", l.huge); err != nil {
			return err
		}
	}
	if created {
		return nil
	}
	var errs []error
	if t.has["memory"] && l.memory == 0 {
		errs = append(errs, t.unbound(group, "memory.max"))
	}
	if t.has["memory"] && l.qos.high == 0 {
		errs = append(errs, t.unbound(group, "memory.high"))
	}
	return errors.Join(errs...)
}

// limitReserved limits the huge pages that processes reserve without using them, which nothing else can use either. Before Linux 5.7
// the kernel has no such limit. Of an existing cgroup that has reserved more the kernel rejects it; the limit on pages in use holds.
func limitReserved(dir, suffix string, huge map[string]uint64) error {
	for size, n := range huge {
		err := writeControl(filepath.Join(dir, "hugetlb."+size+suffix), strconv.FormatUint(n, 10))
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return nil
}

func (t *v2) weigh(group string, l limits) error {
	if !t.has["cpu"] {
		return nil
	}
	return writeControl(filepath.Join(t.root, group, "cpu.weight"), strconv.FormatUint(weightOf(l.shares), 10))
}

// explained adds to an error what can be done about it.
func explained(err error) error {
	inner := strings.Contains(err.Error(), "cgroup.subtree_control")
	switch {
	case inner && errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: a cgroup that has processes cannot enforce limits of those below it; move them into one of these (DelegateSubgroup= of a systemd unit)", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: have the cgroup parent delegated to this user (Delegate=yes of a systemd unit), or run as root", err)
	}
	return err
}

// unbound removes an earlier memory limit, which an unset limit leaves unchanged.
func (t *v2) unbound(group, file string) error {
	err := writeControl(filepath.Join(t.root, group, file), "max")
	if isCgroupRemoved(err) {
		return nil
	}
	return err
}

func (t *v2) dirs(group string) []string {
	return []string{filepath.Join(t.root, group)}
}

func (t *v2) release(context.Context, string) error { return nil }
