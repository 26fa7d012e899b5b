package mounts

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// IsShared reports whether the mount of path passes on what is mounted below it.
func IsShared(path string) (bool, error) {
	id, err := ID(unix.AT_FDCWD, path)
	if err != nil {
		return false, fmt.Errorf("find the mount of %s: %w", path, err)
	}
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return false, err
	}
	return isShared(string(table), id), nil
}

// ID returns the id of the mount of a path, or of the descriptor itself.
func ID(dir int, path string) (uint64, error) {
	var st unix.Statx_t
	flags := 0
	if path == "" {
		flags = unix.AT_EMPTY_PATH
	}
	if err := unix.Statx(dir, path, flags, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, unix.ENOTSUP
	}
	return st.Mnt_id, nil
}

// isShared finds a mount by its id in the text of mountinfo, where the fields from the
// seventh to a hyphen are its propagation.
func isShared(table string, id uint64) bool {
	want := strconv.FormatUint(id, 10)
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 7 || fields[0] != want {
			continue
		}
		for _, f := range fields[6:] {
			switch {
			case f == "-":
				return false
			case strings.HasPrefix(f, "shared:"):
				return true
			}
		}
	}
	return false
}
