package podsource

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/sublet-dev/agent/podspec"
)

// read returns the content of a regular file of at most limit bytes, and what
// the file was after it was read. info is what it was before: neither a device
// nor a pipe is opened. Whatever is behind the name by then, no more than limit
// bytes are read.
func read(fsys fs.FS, name string, info fs.FileInfo, limit int) ([]byte, fs.FileInfo, error) {
	if err := checkFile(info, limit); err != nil {
		return nil, nil, err
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	opened, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if err := checkFile(opened, limit); err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, nil, err
	}
	if len(data) > limit {
		return nil, nil, tooLarge(limit)
	}
	after, err := f.Stat()
	return data, after, err
}

func checkFile(info fs.FileInfo, limit int) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("is a %s, not a regular file; remove it, or put the manifest there", kind(info.Mode()))
	}
	if info.Size() > int64(limit) {
		return tooLarge(limit)
	}
	return nil
}

func tooLarge(limit int) error {
	return fmt.Errorf("more than the %d bytes allowed for a manifest; split or shorten it: %w", limit, podspec.ErrTooLarge)
}

// kind names what is no regular file.
func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "folder"
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}

// bare takes away the path that an error of package fs brings along: a fault
// says where it is by itself.
func bare(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", p.Op, p.Err)
	}
	return err
}
