package csitest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func mountBind(source, target string, readOnly bool) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if !readOnly {
		return nil
	}
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// unbind removes all mounts from a path.
func unbind(path string) error {
	for {
		switch err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPERM):
			return nil // there is none, or an ordinary user cannot have made one
		case err != nil:
			return err
		}
	}
}

// loopDevice makes a block device of a file, which it creates. Its path is kept beside the
// file.
func loopDevice(path string) (string, error) {
	if device, err := os.ReadFile(path + ".loop"); err == nil {
		return string(device), nil
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // the loop device has its own
	if err := file.Truncate(1 << 20); err != nil {
		return "", err
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = control.Close() }() // only asked
	for range 64 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", err
		}
		device := fmt.Sprintf("/dev/loop%d", n)
		loop, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			return "", err
		}
		err = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, int(file.Fd()))
		_ = loop.Close()
		if errors.Is(err, unix.EBUSY) { // taken meanwhile
			continue
		}
		if err != nil {
			return "", err
		}
		return device, os.WriteFile(path+".loop", []byte(device), 0o600)
	}
	return "", errors.New("no loop device is free")
}

func detachLoop(device string) error {
	loop, err := os.OpenFile(filepath.Clean(device), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = loop.Close() }() // only asked
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return err
	}
	return nil
}
