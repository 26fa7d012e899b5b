package logrotate

import (
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/mkdir"
)

// openRoot opens the logs directory.
func (r *Rotator) openRoot() (*os.Root, error) {
	if err := mkdir.All(r.cfg.LogsDir, 0o755); err != nil { // the kubelet's mode: log shippers read it
		return nil, fmt.Errorf("create logs directory: %w", err)
	}
	opened, err := os.OpenRoot(r.cfg.LogsDir)
	if err != nil {
		return nil, fmt.Errorf("open logs directory: %w", err)
	}
	return opened, nil
}

// followRoot opens the logs directory again if it was removed, or is another one now: something may have been mounted
// there. The logs are then new ones. Operations in progress use the old one, which is closed by its finalizer.
func (r *Rotator) followRoot(root *atomic.Pointer[logRoot]) {
	current := *root.Load()
	was, err := current.Stat(".")
	if is, statErr := os.Stat(r.cfg.LogsDir); err == nil && statErr == nil && os.SameFile(was, is) {
		return
	}
	opened, err := r.openRoot()
	if err != nil {
		r.cfg.Logger.Warn("logs directory not opened again", slog.String("path", r.cfg.LogsDir), logattr.Err(err))
		return
	}
	current.Root = opened
	root.Store(&current)
	for _, l := range r.logs {
		r.logWatch.forget(l)
		r.wake(l)
	}
}
