package podsync

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/mkdir"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

// logDirMode is the mode that the kubelet uses, because log shippers read logs.
const logDirMode = 0o755

// makeLogDir creates the log directory of a pod, with a mark. A directory that exists
// without a mark is marked only if the pod is in the runtime: then the pod was adopted.
// Otherwise it may belong to a pod of the same UID that another agent runs.
func (s *Syncer) makeLogDir(dir string, uid types.UID, inRuntime bool) error {
	_, err := os.Lstat(dir)
	existed := err == nil
	if s.cfg.Owner == nil || existed && !inRuntime {
		return mkdir.All(dir, logDirMode)
	}
	parent, name := filepath.Split(dir)
	if err := mkdir.All(parent, logDirMode); err != nil {
		return err
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return err
	}
	if existed {
		err = owner.Mark(root, name, s.cfg.Owner())
	} else {
		err = owner.MakeMarked(root, name, s.cfg.Owner(), string(uid))
	}
	return errors.Join(err, root.Close())
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
