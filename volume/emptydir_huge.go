package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/sublet-dev/agent/podspec"
)

// incompleteMode is the mode of a hugetlbfs that has not got its own yet. No mount option has the
// bit for the group of new files. A container has no reason to set this one.
const incompleteMode = 0o1000

// hugePagesDir mounts a hugetlbfs. What its pages are taken from is the limit of the containers,
// which their cgroups have; sizeLimit bounds the volume itself.
func (m *Manager) hugePagesDir(r *request, rel string) error {
	medium, group := r.vol.EmptyDir.Medium, fsGroup(r.pod)
	size, err := podspec.HugePageSize(r.pod, medium)
	if err != nil {
		return fmt.Errorf("emptyDir: %w", err)
	}
	if !m.mount.canMount() {
		return fmt.Errorf("emptyDir with medium %s: %w", medium, ErrPrivilege)
	}
	if err := r.dir.Mkdir(rel, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	mounted, err := r.dir.isMountPoint(rel)
	if err != nil {
		return err
	}
	if !mounted {
		o := hugetlbfsOptions{pageSize: size, mode: 0o1777, gid: group}
		if group != nil {
			o.mode = incompleteMode
		}
		if limit := r.vol.EmptyDir.SizeLimit; limit != nil {
			o.bytes = limit.Value()
		}
		if err := m.mount.hugetlbfs(filepath.Join(r.dir.path, rel), o); err != nil {
			return err
		}
	}
	return completeHugePages(r.dir, rel, group)
}

// completeHugePages sets the mode of a hugetlbfs that was mounted for a group, also by a process
// that ended in between.
func completeHugePages(dir *podDir, rel string, group *int64) error {
	if group == nil {
		return nil
	}
	info, err := dir.Lstat(rel)
	if err != nil {
		return err
	}
	if info.Mode()&(fs.ModePerm|fs.ModeSticky|fs.ModeSetgid) != fs.ModeSticky {
		return nil
	}
	return dir.Chmod(rel, fs.ModePerm|fs.ModeSticky|fs.ModeSetgid)
}
