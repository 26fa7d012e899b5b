//go:build linux || darwin

package hostprocess

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/mkdir"
	"github.com/sublet-dev/agent/internal/mounts"
)

// acquireRoot marks a root directory as used. If no other process uses it, the processes
// and directories of containers that a killed process left there are removed first. The
// caller keeps the returned file open for as long as it uses root; the lock on it is the
// mark.
func acquireRoot(root string, log *slog.Logger) (*os.File, error) {
	if err := mkdir.All(filepath.Join(root, "containers"), 0o711); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	fd := int(lock.Fd())
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = removeStale(filepath.Join(root, "containers"), log)
	} else if errors.Is(err, unix.EWOULDBLOCK) {
		err = nil // in use by another process: nothing in it is stale
	}
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_SH)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("acquire root directory %s: %w", root, err), lock.Close())
	}
	return lock, nil
}

// removeStale kills the remaining processes of the containers that have a directory in
// dir, and removes the directories. A process is recognized by the tag of its container,
// never by its number alone. A directory that cannot be removed stays and is logged: new
// containers do not need its name.
func removeStale(dir string, log *slog.Logger) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	tags, ids := map[tag]bool{}, map[string]bool{}
	for _, e := range entries {
		if !isID(e.Name()) || !e.IsDir() {
			continue
		}
		ids[e.Name()] = true
		if t := readTag(filepath.Join(dir, e.Name())); t != 0 {
			tags[t] = true
		}
	}
	if len(ids) == 0 {
		return nil
	}
	killAll(tags, ids)
	for id := range ids {
		removeScratch(dir, id, log)
	}
	return nil
}

// removeScratch removes the directory of one container, whose content is hostile: it may
// be deeper than there are descriptors, and have mounts of others in it, which stay.
func removeScratch(dir, id string, log *slog.Logger) {
	err := mounts.Remove(context.Background(), dir, id) //nolint:forbidigo // Executor.Remove has no context: removal is not cancelled
	if err != nil && log != nil {
		log.Warn("removing container directory failed", slog.String("containerID", id), logattr.Err(err))
	}
}

// isID reports whether a name is an id as newID makes them.
func isID(name string) bool {
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}
