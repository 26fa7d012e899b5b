// Package fileversion tells whether a file may have changed since it was read, from its
// metadata alone.
package fileversion

import (
	"io/fs"
	"time"
)

// granularity is the age that a modification time must have to prove that the file has
// not changed since. Some file systems have a resolution of two seconds.
const granularity = 2 * time.Second

// Version is a file as it was read. The zero value is that of a file that was not read.
type Version struct {
	info   fs.FileInfo
	readAt time.Time
}

// Of returns the version of a file that was read at the given time, with its metadata
// shortly before or after.
func Of(info fs.FileInfo, readAt time.Time) Version { return Version{info, readAt} }

// IsCurrent reports whether the file with the metadata now surely has the content that
// was read. It reports false for a file that was written shortly before it was read, and
// wherever the time of the last change of the metadata, which no program can set, is
// not known.
func (v Version) IsCurrent(now fs.FileInfo) bool {
	return v.info != nil && isSame(v.info, now) && v.readAt.Sub(now.ModTime()) > granularity
}
