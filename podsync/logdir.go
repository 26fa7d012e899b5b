package podsync

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent/internal/mkdir"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

// makeLogDir creates the log directory of a pod and marks it. A directory that exists
// without a mark is marked only if the pod is in the runtime: then an agent was killed
// before it set the mark, or the pod was adopted. Otherwise it may belong to a pod of
// the same UID that another agent runs.
func (s *Syncer) makeLogDir(dir string, inRuntime bool) error {
	_, err := os.Lstat(dir)
	existed := err == nil
	if err := mkdir.All(dir, 0o755); err != nil { // the mode that the kubelet uses, because log shippers read it
		return err
	}
	if s.cfg.Owner == nil || existed && !inRuntime {
		return nil
	}
	root, err := os.OpenRoot(filepath.Dir(dir))
	if err == nil {
		err = errors.Join(owner.Mark(root, filepath.Base(dir), s.cfg.Owner()), root.Close())
	}
	if err != nil && !existed {
		err = errors.Join(err, os.Remove(dir)) // the next sync makes and marks it
	}
	return err
}

// removeLogDir removes the log directory of a pod, unless it belongs to another agent.
func (s *Syncer) removeLogDir(ctx context.Context, dir string, final runtime.Pod) error {
	owned, err := s.ownsLogDir(dir, final)
	if err != nil || !owned {
		return err
	}
	return owner.Remove(ctx, filepath.Dir(dir), filepath.Base(dir))
}

// ownsLogDir reports whether a log directory belongs to the observed pod of this agent.
func (s *Syncer) ownsLogDir(dir string, observed runtime.Pod) (bool, error) {
	if s.cfg.Owner == nil {
		return true, nil
	}
	root, err := os.OpenRoot(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // nothing to remove
	}
	if err != nil {
		return false, err
	}
	mark := owner.MarkOf(root, filepath.Base(dir))
	return mark == s.cfg.Owner() || mark == "" && hasRemains(observed), root.Close()
}
