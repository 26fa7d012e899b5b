package cgroup

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// ownerMark is the extended attribute that tells whose a group is. Only root
// can set and see it.
const ownerMark = "trusted.sublet.owner"

// maxMark bounds what is read of a mark.
const maxMark = 4096

// ErrNotOwner is wrapped by the error for a pod's group that bears the mark of
// another owner, and in which something runs.
var ErrNotOwner = errors.New("the cgroup belongs to another owner")

// owner is what our mark says, or "".
func (m *Manager) owner() string {
	if m.cfg.Owner == nil {
		return ""
	}
	return m.cfg.Owner()
}

// mark marks a group as ours. A kernel that cannot keep marks costs no more
// than that a new process does not know the group.
func (m *Manager) mark(t tree, group string) {
	if m.owner() == "" {
		return
	}
	if err := unix.Setxattr(t.folders(group)[0], ownerMark, []byte(m.owner()), 0); err != nil {
		m.cfg.Logger.Debug("cgroup could not be marked", slog.String("cgroup", group), slog.Any("error", err))
	}
}

// markOf returns the mark that a folder bears, or "".
func markOf(dir string) string {
	buf := make([]byte, maxMark)
	n, err := unix.Getxattr(dir, ownerMark, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// marked reports whether the folder bears our mark.
func (m *Manager) marked(dir string) bool {
	owner := m.owner()
	return owner != "" && markOf(dir) == owner
}

// foreign reports whether a group bears the mark of another owner. One without a
// mark is a kubelet's that was adopted, or one of which the mark is lost.
func (m *Manager) foreign(t tree, group string) bool {
	owner := m.owner()
	mark := markOf(t.folders(group)[0])
	return owner != "" && mark != "" && mark != owner
}

// taken reports whether a group is another owner's and something runs in it. An
// empty one was left by an agent that is no more, and is taken over.
func (m *Manager) taken(t tree, group string) (bool, error) {
	if !m.foreign(t, group) {
		return false, nil
	}
	for _, dir := range t.folders(group) {
		if empty, err := isEmpty(dir); err != nil || !empty {
			return true, err
		}
	}
	return false, nil
}

// isEmpty reports whether no process is in the folder's groups.
func isEmpty(dir string) (empty bool, err error) {
	empty = true
	err = walkDirs(dir, func(at string) error {
		procs, err := os.ReadFile(filepath.Join(at, "cgroup.procs"))
		if err != nil && !isCgroupRemoved(err) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		empty = empty && len(procs) == 0 && !errors.Is(err, unix.EOPNOTSUPP)
		return nil
	})
	return empty, err
}

// mayLimit reports whether a group above pods may be given limits: one that this
// agent made. A kubelet, or another agent, that has its pods below the same group
// has set it up for these. What no process may mark is taken for ours, as long as
// nobody else has marked it.
func (m *Manager) mayLimit(t tree, group string) bool {
	if m.owner() == "" || !exists(t, group) || m.marked(t.folders(group)[0]) {
		return true
	}
	if markOf(t.folders(group)[0]) != "" {
		return false
	}
	_, made := m.lastLimits[group]
	return made || os.Geteuid() != 0
}

// made reports whether this process made the pod's group.
func (m *Manager) made(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.pods[uid]
	return ok
}
