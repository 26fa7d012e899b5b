package cgroup

import (
	"errors"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
)

// ownerMark returns the extended attribute with the owner of a cgroup. Only root can read and
// write that of root; an ordinary user marks the cgroups that were delegated to it.
func ownerMark() string {
	if os.Geteuid() != 0 {
		return "user.sublet.owner"
	}
	return "trusted.sublet.owner"
}

// maxMark is the maximum size of a mark in bytes.
const maxMark = 4096

// ErrNotOwner is wrapped by the error for a pod's cgroup that has the mark of another
// owner and is not empty.
var ErrNotOwner = errors.New("cgroup belongs to another owner")

// owner returns the owner in the marks of this manager, or "".
func (m *Manager) owner() string {
	if m.cfg.Owner == nil {
		return ""
	}
	return m.cfg.Owner()
}

// mark marks a cgroup as owned. Where the kernel does not support it, a new process does
// not recognize the cgroup.
func (m *Manager) mark(t tree, group string) {
	if m.owner() == "" {
		return
	}
	if err := unix.Setxattr(t.dirs(group)[0], ownerMark(), []byte(m.owner()), 0); err != nil {
		m.cfg.Logger.Debug("setting cgroup owner failed", slog.String("cgroup", group), logattr.Err(err))
	}
}

// markOf returns the mark of a directory, or "".
func markOf(dir string) string {
	buf := make([]byte, maxMark)
	n, err := unix.Getxattr(dir, ownerMark(), buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// marked reports whether the directory has the owner's mark.
func (m *Manager) marked(dir string) bool {
	owner := m.owner()
	return owner != "" && markOf(dir) == owner
}

// foreign reports whether a cgroup has the mark of another owner. One without a mark was
// adopted from a kubelet, or has lost its mark.
func (m *Manager) foreign(t tree, group string) bool {
	owner := m.owner()
	mark := markOf(t.dirs(group)[0])
	return owner != "" && mark != "" && mark != owner
}

// taken reports whether a cgroup belongs to another owner and is not empty. An empty one
// was left by an agent that no longer exists, and is adopted.
func (m *Manager) taken(t tree, group string) (bool, error) {
	if !m.foreign(t, group) {
		return false, nil
	}
	for _, dir := range t.dirs(group) {
		if empty, err := isEmpty(dir); err != nil || !empty {
			return true, err
		}
	}
	return false, nil
}

// isEmpty reports whether the cgroups in a directory have no process.
func isEmpty(dir string) (empty bool, err error) {
	empty = true
	err = walkDirs(dir, func(cgroup int) error {
		procs, err := readProcs(cgroup)
		if err != nil && !isCgroupRemoved(err) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		empty = empty && len(procs) == 0 && !errors.Is(err, unix.EOPNOTSUPP)
		return nil
	}, nil)
	return empty, err
}

// mayLimit reports whether limits of a cgroup above pods may be set: only if this agent
// created it. A kubelet or another agent with pods below the same cgroup has configured
// it for them. Where marks cannot be set, a cgroup without one counts as owned.
func (m *Manager) mayLimit(t tree, group string) bool {
	if m.owner() == "" || !exists(t, group) || m.marked(t.dirs(group)[0]) {
		return true
	}
	if markOf(t.dirs(group)[0]) != "" {
		return false
	}
	_, made := m.lastLimits[group]
	return made || os.Geteuid() != 0
}

// made reports whether this process created the cgroup of the pod.
func (m *Manager) made(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.pods[uid]
	return ok
}
