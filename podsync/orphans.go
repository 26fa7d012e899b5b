package podsync

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/fileversion"
	"github.com/sublet-dev/agent/internal/safe"
)

// podDirs are the UIDs of the pods that have a directory.
type podDirs struct {
	mu      sync.Mutex // held while the disk is read
	uids    []types.UID
	version fileversion.Version // of the directory that has them
}

// ListPodsFromDisk returns the UIDs of the pods that have a directory, and of those that a
// StoredReleaser has something for. It reads the disk. The result is read-only.
func (s *Syncer) ListPodsFromDisk() ([]types.UID, error) {
	uids, err := s.listPodDirs()
	errs := []error{err}
	var others []types.UID
	for _, i := range s.cfg.Injectors {
		if r, ok := i.(StoredReleaser); ok {
			errs = append(errs, safe.Call(s.cfg.Logger, "list pods with injections", func() error {
				more, err := r.PodUIDs()
				others = append(others, more...)
				return err
			}))
		}
	}
	if len(others) > 0 {
		uids = slices.Concat(uids, others)
		slices.Sort(uids)
		uids = slices.Compact(uids)
	}
	return uids, errors.Join(errs...)
}

// listPodDirs returns the UIDs of the pods that have a directory. The result is read-only.
func (s *Syncer) listPodDirs() ([]types.UID, error) {
	d := &s.podDirs
	d.mu.Lock()
	defer d.mu.Unlock()
	info, err := os.Stat(s.cfg.PodsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pod directories: %w", err)
	}
	if d.version.IsCurrent(info) {
		return d.uids, nil
	}
	readAt := time.Now()
	entries, err := os.ReadDir(s.cfg.PodsDir)
	if err != nil {
		return nil, fmt.Errorf("list pod directories: %w", err)
	}
	uids := make([]types.UID, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	d.uids, d.version = uids, fileversion.Of(info, readAt)
	return uids, nil
}

// CleanupOrphan releases the resources that a previous process has left of a pod of
// which only the UID is known: volumes, cgroup, what Injectors have set aside, and directory.
func (s *Syncer) CleanupOrphan(ctx context.Context, uid types.UID) error {
	if _, err := podDir(s.cfg.PodsDir, uid); err != nil {
		return err
	}
	if err := s.releaseResources(ctx, uid); err != nil {
		return err
	}
	if err := s.removeDir(ctx, uid); err != nil {
		return err
	}
	s.forget(uid)
	return nil
}

// CleanupOrphans is CleanupOrphan for all pods of ListPodsFromDisk. None of them may have
// a container any more. It goes on after an error, and returns all of them.
func CleanupOrphans(ctx context.Context, s interface {
	ListPodsFromDisk() ([]types.UID, error)
	CleanupOrphan(ctx context.Context, uid types.UID) error
},
) error {
	uids, err := s.ListPodsFromDisk()
	errs := []error{err}
	for _, uid := range uids {
		errs = append(errs, s.CleanupOrphan(ctx, uid))
	}
	return errors.Join(errs...)
}
