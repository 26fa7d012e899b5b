package cgroup

import (
	"log/slog"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// ownerMark is the extended attribute that tells whose a group is. Only root
// can set and see it.
const ownerMark = "trusted.sublet.owner"

// maxMark bounds what is read of a mark.
const maxMark = 4096

// mark marks a group as ours. A kernel that cannot keep marks costs no more
// than that a new process does not know the group.
func (m *Manager) mark(t tree, group string) {
	if m.cfg.Owner == "" {
		return
	}
	if err := unix.Setxattr(t.folders(group)[0], ownerMark, []byte(m.cfg.Owner), 0); err != nil {
		m.cfg.Logger.Debug("cgroup could not be marked", slog.String("cgroup", group), slog.Any("error", err))
	}
}

// marked reports whether the folder bears our mark.
func (m *Manager) marked(dir string) bool {
	if m.cfg.Owner == "" {
		return false
	}
	buf := make([]byte, maxMark)
	n, err := unix.Getxattr(dir, ownerMark, buf)
	return err == nil && string(buf[:n]) == m.cfg.Owner
}

// made reports whether this process made the pod's group.
func (m *Manager) made(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.pods[uid]
	return ok
}
