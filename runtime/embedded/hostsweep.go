//go:build linux || darwin

package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/mkdir"
)

// acquireRoot takes a root directory into use. If no living process uses it, what a killed
// one has left there is swept first. The result is to be kept open as long as root
// is used: it tells others that it is.
func acquireRoot(root string) (*os.File, error) {
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
		err = removeStale(filepath.Join(root, "containers"))
	} else if errors.Is(err, unix.EWOULDBLOCK) {
		err = nil // somebody lives there: nothing is left over
	}
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_SH)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("take %s into use: %w", root, err), lock.Close())
	}
	return lock, nil
}

// removeStale kills what still runs of the containers that have a directory in dir, and
// removes the directories. A process is told by what only its container's have, so that
// none is taken for one that has its number now.
func removeStale(dir string) error {
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
	var errs []error
	for id := range ids {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, id)))
	}
	return errors.Join(errs...)
}

// isID reports whether a name is an id as newID makes them.
func isID(name string) bool {
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}
