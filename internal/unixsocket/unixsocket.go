// Package unixsocket makes sockets in the file system.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sublet-dev/agent/internal/sleep"
)

// Mode is that of a socket: the user of this process alone.
const Mode = 0o600

// maxPath is the length of the path of a socket in Linux, in bytes.
const maxPath = 107

// CheckPath returns why path cannot be that of a socket, and nil if it can.
func CheckPath(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q must be an absolute path", path)
	}
	if len(path) > maxPath {
		return fmt.Errorf("%q is too long: the path of a socket has at most %d bytes", path, maxPath)
	}
	return nil
}

// ErrInUse means that another process serves the socket.
var ErrInUse = errors.New("another process serves the socket")

// Listen makes a socket with mode 0600, in place of one that a process left which does not
// serve it any more. A file that is no socket is an error, and so is a socket that is
// served: ErrInUse. Of processes that call it at once, one gets the socket. Closing the
// listener removes the socket, unless another one has taken its place.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	return ListenAfter(ctx, path, func() error { return nil })
}

// ListenAfter is Listen for a process that has something to do when it is known that no other
// serves the socket, and before it does so itself.
func ListenAfter(ctx context.Context, path string, prepare func() error) (net.Listener, error) {
	// Without the lock, one process could remove the socket that another has made meanwhile.
	unlock, err := lock(ctx, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if IsServed(ctx, path) {
		return nil, fmt.Errorf("%s: %w", path, ErrInUse)
	}
	if err := errors.Join(prepare(), RemoveStale(path)); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: restrict}
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, Mode); err != nil { // where restrict has no effect
		return nil, errors.Join(err, listener.Close())
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return &socket{UnixListener: listener.(*net.UnixListener), path: path, info: info}, nil //nolint:errcheck // that is what there is for "unix"
}

// socket is a listener that leaves a socket alone which has taken the place of its own, such as that of a
// kubelet, which does not ask whether one is served.
type socket struct {
	*net.UnixListener

	path string
	info fs.FileInfo // of its own, which no other file has as long as it is open
}

// Close implements net.Listener.
func (s *socket) Close() error {
	if info, err := os.Lstat(s.path); err == nil && !os.SameFile(info, s.info) {
		s.SetUnlinkOnClose(false)
	}
	return s.UnixListener.Close()
}

// RemoveStale removes a socket that is not served. It leaves other files alone.
func RemoveStale(path string) error {
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSocket {
		return nil //nolint:nilerr // the caller sees what is wrong when it uses the path
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// newSocket is the age below which a socket that refuses connections may be about to be served: a
// process makes the file and then listens.
const newSocket = 500 * time.Millisecond

// IsServed reports whether a process accepts connections on a socket, or may: only a
// refused connection proves that none does, unless the socket is new. It blocks for a second at most.
func IsServed(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			_ = conn.Close()
			return true
		}
		info, errStat := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) || errStat != nil || info.Mode().Type() != fs.ModeSocket {
			return false
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return true
		}
		if age := time.Since(info.ModTime()); age < 0 || age > newSocket {
			return false
		}
		if sleep.For(ctx, 10*time.Millisecond) != nil {
			return true
		}
	}
}
