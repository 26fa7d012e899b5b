//go:build !linux

package fileversion

import "io/fs"

func isSame(fs.FileInfo, fs.FileInfo) bool { return false }
