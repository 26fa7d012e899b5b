package cri

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Containers have some files of the pod's directory mounted read-write, so that
// what is in them, how long they are, their modes and their leases are what a
// container made of them. Opening one follows no link, does not block, and
// takes regular files only; reading one has a bound.
const openFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

// openRegular opens a regular file. A device that a container has made in a volume is not opened even for a moment: that
// can have effects, as of a watchdog, which restarts the machine.
func openRegular(path string, flag int) (*os.File, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular(path)
	}
	return regular(os.OpenFile(path, flag|openFlags, 0))
}

func errNotRegular(path string) error {
	return &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
}

// regular closes and refuses what is not a regular file.
func regular(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular(f.Name())
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// openShared opens a file that containers have mounted, or are about to, and
// gives it its mode, whatever the umask or a container made of that. The very
// file that running containers have is kept if it can be opened at once;
// otherwise, as when a container holds a lease on it, a new one takes its place.
func openShared(path string, mode fs.FileMode) (*os.File, error) {
	f, err := regular(os.OpenFile(path, os.O_RDWR|os.O_CREATE|openFlags, mode))
	if err != nil {
		if rmErr := os.Remove(path); rmErr != nil {
			return nil, errors.Join(err, rmErr)
		}
		if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|openFlags, mode); err != nil {
			return nil, err
		}
	}
	if err := f.Chmod(mode); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// writeShared brings a file that containers have mounted to content. It reads no
// more of it than there should be, and a reader never finds it empty.
func writeShared(path string, content []byte, mode fs.FileMode) (err error) {
	f, err := openShared(path, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// One byte more tells a longer file.
	old, err := io.ReadAll(io.LimitReader(f, int64(len(content))+1))
	if err == nil && bytes.Equal(old, content) {
		return nil
	}
	if len(old) > len(content) {
		if err := f.Truncate(int64(len(content))); err != nil {
			return err
		}
	}
	_, err = f.WriteAt(content, 0)
	return err
}

// tail reads the end of a regular file, at most limit bytes of it.
func tail(path string, limit int64) ([]byte, error) {
	f, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(info.Size()-limit, 0), limit))
}

// keepTail cuts all but the end of a file off, if it is there and longer than limit.
func keepTail(path string, limit int64) error {
	f, err := openRegular(path, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // what counts has been written
	info, err := f.Stat()
	if err != nil || info.Size() <= limit {
		return err
	}
	end, err := io.ReadAll(io.NewSectionReader(f, info.Size()-limit, limit))
	if err == nil {
		_, err = f.WriteAt(end, 0)
	}
	if err == nil {
		err = f.Truncate(int64(len(end)))
	}
	return err
}
