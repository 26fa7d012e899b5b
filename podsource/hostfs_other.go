//go:build !linux

package podsource

import (
	"io/fs"
	"os"
)

// hostFS is the file system of the host, by its own paths.
type hostFS struct{}

func (hostFS) Open(name string) (fs.File, error)          { return os.Open(name) }
func (hostFS) Stat(name string) (fs.FileInfo, error)      { return os.Stat(name) }
func (hostFS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }
