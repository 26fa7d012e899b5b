package logrotate

import (
	"context"
	"log/slog"

	"github.com/sublet-dev/agent/internal/logattr"
)

// requestCleanup requests a cleanup of rotated logs. It does not block.
func (r *Rotator) requestCleanup(path string) {
	select {
	case r.needsCleanup <- path:
	default:
	}
}

// runCleanup cleans up rotated logs until ctx is done, one at a time because compression
// uses a whole CPU.
func (r *Rotator) runCleanup(ctx context.Context, root func() *logRoot) {
	for {
		select {
		case <-ctx.Done():
			return
		case path := <-r.needsCleanup:
			if err := root().cleanup(ctx, path); err != nil && ctx.Err() == nil {
				r.cfg.Logger.Warn("removing rotated logs failed", slog.String("path", path), logattr.Err(err))
			}
		}
	}
}
