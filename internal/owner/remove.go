package owner

import (
	"context"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent/internal/fserr"
	"github.com/sublet-dev/agent/internal/mounts"
)

// Remove removes a marked directory below parent, but not what is mounted in it: see mounts.Remove. The mark
// goes last, so that a removal that is interrupted, or fails, can be continued.
func Remove(ctx context.Context, parent, name string) error {
	dir := filepath.Join(parent, name)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fserr.IgnoreNotExist(err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.Name() != MarkName {
			names = append(names, e.Name())
		}
	}
	if err := mounts.Remove(ctx, dir, names...); err != nil {
		return err
	}
	return mounts.Remove(ctx, parent, name)
}
