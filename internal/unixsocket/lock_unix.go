//go:build unix

package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/sleep"
)

// maxLockWait bounds the wait for a lock. Making a socket takes a second at most; a lock that is
// kept longer is that of another program, of any user that may read the directory.
const maxLockWait = 10 * time.Second

// lock locks a directory against the processes that make sockets in it. It leaves no file. Where
// directories cannot be locked, it does nothing.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return func() {}, nil //nolint:nilerr // the caller sees what is wrong when it makes the socket
	}
	for end := time.Now().Add(maxLockWait); time.Now().Before(end); {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		if err := sleep.For(ctx, 5*time.Millisecond); err != nil {
			_ = f.Close() // only locked
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
	}
	return func() { _ = f.Close() }, nil // which releases the lock
}
