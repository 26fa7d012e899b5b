package cgroup

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// writeControl writes a file of a cgroup. It is an error if the kernel has no such file. An os.File would cost twice as many
// system calls, because it finds out whether the file can be polled.
func writeControl(path, value string) error {
	fd, err := openControl(path, unix.O_WRONLY|unix.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = ignoringEINTR(func() (int, error) { return unix.Write(fd, []byte(value)) })
	if err != nil {
		err = &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return errors.Join(err, unix.Close(fd))
}

// isEmptyControl reports whether a file of a cgroup has nothing but a line end.
func isEmptyControl(path string) (bool, error) {
	fd, err := openControl(path, unix.O_RDONLY)
	if err != nil {
		return false, err
	}
	buf := make([]byte, 2)
	n, err := ignoringEINTR(func() (int, error) { return unix.Read(fd, buf) })
	if err != nil {
		err = &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return n == 0 || buf[0] == '\n', errors.Join(err, unix.Close(fd))
}

func openControl(path string, flags int) (fd int, err error) {
	fd, err = ignoringEINTR(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// ignoringEINTR repeats a system call that a signal has interrupted.
func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
