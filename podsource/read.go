package podsource

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/sublet-dev/agent/podspec"
)

// read returns the content of a regular file of at most limit bytes, and its FileInfo
// after it was read. info is its FileInfo from before: devices and pipes are not opened.
// Even if the file is replaced, no more than limit bytes are used.
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
		return fmt.Errorf("not a regular file but a %s; remove or replace it", kind(info.Mode()))
	}
	if info.Size() > int64(limit) {
		return tooLarge(limit)
	}
	return nil
}

func tooLarge(limit int) error {
	return fmt.Errorf("manifest exceeds %d bytes; split or shorten it: %w", limit, podspec.ErrTooLarge)
}

// kind returns the kind of a file that is not regular.
func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "directory"
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}

// withoutPath removes the path from an error of package fs, because a SourceError has
// its own location.
func withoutPath(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", p.Op, p.Err)
	}
	return err
}
