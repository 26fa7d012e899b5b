package podsource

import (
	"io/fs"
	"os"
	"syscall"
)

// hostFS is the file system of the host, by its own paths.
type hostFS struct{}

// Open does not wait for a writer should the name lead to a pipe by now.
func (hostFS) Open(name string) (fs.File, error) {
	return os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
}

func (hostFS) Stat(name string) (fs.FileInfo, error)      { return os.Stat(name) }
func (hostFS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }
