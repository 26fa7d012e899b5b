//go:build !linux

package oomwatch

import (
	"errors"
	"io"
)

// OpenKernelLog fails: only Linux has this log.
func OpenKernelLog() (io.ReadCloser, error) { return nil, errors.ErrUnsupported }
