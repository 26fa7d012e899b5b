package fileversion

import (
	"io/fs"
	"os"
	"syscall"
)

func isSame(a, b fs.FileInfo) bool {
	x, ok := a.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	y, ok := b.Sys().(*syscall.Stat_t)
	return ok && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && x.Ctim == y.Ctim
}
