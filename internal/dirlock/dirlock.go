// Package dirlock lets one process at a time use a folder.
package dirlock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrInUse is wrapped by the error of Folder while another process holds it.
var ErrInUse = errors.New("in use by another agent")

const name = "agent.lock"

// Acquire takes the folder dir, which must exist, for this process. It does not
// block: where another holds it the error wraps ErrHeld and names the process.
// The kernel gives the lock back when the process ends, however it ends. The
// caller calls release when done.
func Acquire(dir string) (release func(), err error) {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := read(f)
		_ = f.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("folder %s: %w (%s); stop it or give this one another root folder", dir, ErrInUse, holder)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := write(f); err != nil {
		_ = f.Close() // gives the lock back
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil // closing gives the lock back
}

func read(f *os.File) string {
	b, err := io.ReadAll(io.LimitReader(f, 32))
	if pid := strings.TrimSpace(string(b)); err == nil && pid != "" {
		return "process " + pid
	}
	return "process unknown"
}

func write(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}
