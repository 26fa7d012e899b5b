// Package dirlock locks a directory, so that one process at a time uses it.
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

// ErrInUse is wrapped by the error of Acquire while another process holds the lock.
var ErrInUse = errors.New("root directory in use")

const name = "agent.lock"

// Acquire locks the directory dir, and creates it, for its owner alone, if it does not
// exist. It does not block: if another process holds the lock, the error wraps ErrInUse
// and names the process. The kernel
// releases the lock when the process exits for any reason. The caller calls release
// when done.
//
// A umask that takes the owner's own permissions is an error, where the kernel reports it: what
// the agent makes could be neither used nor, after a start with another umask, replaced.
func Acquire(dir string) (release func(), err error) {
	if err := checkUmask(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create root directory: %w", err)
	}
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock root directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := readHolder(f)
		_ = f.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w by %s; stop that agent or use another root directory", dir, ErrInUse, holder)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	writeHolder(f)
	return func() { _ = f.Close() }, nil // closing releases the lock
}

// readHolder returns the process that holds the lock.
func readHolder(f *os.File) string {
	b, err := io.ReadAll(io.LimitReader(f, 32))
	if pid := strings.TrimSpace(string(b)); err == nil && pid != "" {
		return "process " + pid
	}
	return "an unknown process"
}

// writeHolder writes the id of this process to the lock file, for the error of another one. The lock holds without it: an agent has
// to start where the disk is full, because it is the one that frees it.
func writeHolder(f *os.File) {
	n, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	if err != nil {
		n = 0
	}
	_ = f.Truncate(int64(n)) // as above
}

// checkUmask returns an error for a umask with which this user cannot use the files that the process makes.
// Only Linux reports a umask without setting it.
func checkUmask() error {
	status, _ := os.ReadFile("/proc/thread-self/status")
	_, rest, _ := strings.Cut(string(status), "\nUmask:\t")
	text, _, _ := strings.Cut(rest, "\n")
	if mask, err := strconv.ParseUint(text, 8, 32); err == nil && mask&0o700 != 0 {
		return fmt.Errorf("umask %s takes the owner's permissions from new files; start the agent with another one, such as 0077", text)
	}
	return nil
}
