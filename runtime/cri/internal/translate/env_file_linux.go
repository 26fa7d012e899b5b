package translate

import (
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks bounds the symbolic links that are followed, as in the kernel.
const maxLinks = 40

// openRegular opens a file for reading if it is a regular one. A container can make devices in its
// volumes, which it cannot open itself, and opening one can have effects: a watchdog starts, and
// restarts the machine. So what is there is looked at first, by a descriptor that does not open it.
func openRegular(root *os.Root, path string) (*os.File, error) {
	for range maxLinks {
		f, err := root.OpenFile(path, unix.O_PATH, 0)
		if err != nil {
			return nil, err
		}
		opened, err := reopenRegular(f)
		_ = f.Close() // opened with O_PATH
		if opened != nil || err != nil {
			return opened, err
		}
		target, err := root.Readlink(path)
		if err != nil {
			return nil, err
		}
		// Not cleaned: what is before ".." may be a link.
		path = path[:strings.LastIndexByte(path, '/')+1] + target
	}
	return nil, &os.PathError{Op: "open", Path: path, Err: unix.ELOOP}
}

// reopenRegular opens the regular file that f refers to for reading. Of a symbolic link it returns nil.
func reopenRegular(f *os.File) (*os.File, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, nil //nolint:nilnil // documented
	case !info.Mode().IsRegular():
		return nil, errNoEnvFile
	}
	return os.Open("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}
