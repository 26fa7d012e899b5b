//go:build !linux

package translate

import (
	"os"
	"syscall"
)

// openRegular opens a file for reading without waiting for one that is a pipe.
func openRegular(root *os.Root, path string) (*os.File, error) {
	return root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}
