package oomwatch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// OpenKernelLog opens /dev/kmsg after its last record. It needs CAP_SYSLOG where kernel.dmesg_restrict is set.
func OpenKernelLog() (io.ReadCloser, error) {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		return nil, errors.Join(fmt.Errorf("skip old records: %w", err), f.Close())
	}
	return kernelLog{f}, nil
}

type kernelLog struct{ *os.File }

// Read returns the next record. One that was overwritten before it was read is lost.
func (l kernelLog) Read(p []byte) (int, error) {
	for {
		n, err := l.File.Read(p)
		switch {
		case errors.Is(err, unix.EPIPE):
		case errors.Is(err, unix.EAGAIN): // a kernel whose log cannot be polled
			time.Sleep(time.Second) //nolint:forbidigo // there is nothing to wait on
		default:
			return n, err
		}
	}
}
