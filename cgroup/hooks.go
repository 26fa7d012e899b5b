package cgroup

import (
	"io/fs"
	"log/slog"
	"time"

	"github.com/sublet-dev/agent/internal/safe"
)

// Operation is what was done to the cgroup of a pod.
type Operation string

// The operations, by the kubelet's names.
const (
	OperationCreate  Operation = "create"
	OperationUpdate  Operation = "update" // of limits
	OperationDestroy Operation = "destroy"
)

// Hooks observe a Manager. Each may be nil and must not block.
type Hooks struct {
	// Changed is called after each operation. A cgroup that has its limits already is not changed. err is also of limits
	// that are in use and were deferred.
	Changed func(op Operation, duration time.Duration, err error)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{Changed: safe.Hook3(log, "Cgroups.Changed", h.Changed, next.Changed)}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{Changed: safe.Hook3(log, "Changed", h.Changed)}
}

// changed calls the hook for an operation that has begun at startTime.
func (m *Manager) changed(op Operation, startTime time.Time, err error) {
	if m.cfg.Hooks.Changed != nil {
		m.cfg.Hooks.Changed(op, time.Since(startTime), err)
	}
}

// Version returns the version of the cgroups that are mounted at /sys/fs/cgroup below root, usually os.DirFS("/"): 1 or 2;
// 0 without any.
func Version(root fs.FS) int {
	const mount = "sys/fs/cgroup"
	if _, err := fs.Stat(root, mount+"/cgroup.controllers"); err == nil {
		return 2
	}
	if entries, err := fs.ReadDir(root, mount); err == nil && len(entries) > 0 {
		return 1
	}
	return 0
}
