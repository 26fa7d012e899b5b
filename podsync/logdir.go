package podsync

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent/internal/mkdir"
	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

// makeLogs makes a pod's log directory and marks it. One that was there already
// without a mark is marked only if the pod is in the runtime: an agent was killed
// before it came to that, or the pod was adopted. Else it may be that of a pod of
// the same UID which somebody else runs.
func (s *Syncer) makeLogs(dir string, inRuntime bool) error {
	_, err := os.Lstat(dir)
	was := err == nil
	if err := mkdir.All(dir, 0o755); err != nil { // as the kubelet's: log shippers read it
		return err
	}
	if s.cfg.Owner == nil || was && !inRuntime {
		return nil
	}
	root, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return err
	}
	return errors.Join(owner.Mark(root, filepath.Base(dir), s.cfg.Owner()), root.Close())
}

// mayRemoveLogs reports whether a log directory is the pod's that was seen, and not
// somebody else's with the same name.
func (s *Syncer) mayRemoveLogs(dir string, seen runtime.Pod) (bool, error) {
	if s.cfg.Owner == nil {
		return true, nil
	}
	root, err := os.OpenRoot(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // there is nothing to remove
	}
	if err != nil {
		return false, err
	}
	mark := owner.MarkOf(root, filepath.Base(dir))
	inRuntime := len(seen.Sandboxes)+len(seen.Containers) > 0
	return mark == s.cfg.Owner() || mark == "" && inRuntime, root.Close()
}

// removeLogs removes a log directory, its mark last.
func removeLogs(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.Name() == owner.MarkName {
			continue
		}
		if err := mounts.Remove(ctx, dir, e.Name()); err != nil {
			return err
		}
	}
	return mounts.Remove(ctx, filepath.Dir(dir), filepath.Base(dir))
}
