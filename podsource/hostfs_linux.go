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

// same reports whether nothing can have been written to a file between the two
// looks, but for changes within the resolution of its times.
func same(a, b fs.FileInfo) bool {
	x, ok := a.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	y, ok := b.Sys().(*syscall.Stat_t)
	return ok && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && x.Ctim == y.Ctim
}
