package pageout

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pageOut uses MADV_PAGEOUT and not MADV_DONTNEED, which would undo the relocations of a position-independent program.
func pageOut() (released int64, err error) {
	mappings, err := programMappings()
	if err != nil {
		return 0, err
	}
	before, err := resident()
	if err != nil {
		return 0, err
	}
	for _, m := range mappings {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_PAGEOUT)
		switch {
		case errno == unix.EINVAL:
			return 0, fmt.Errorf("madvise: %w by this kernel; Linux 5.4 or newer required", errors.ErrUnsupported)
		case errno != 0:
			return 0, fmt.Errorf("madvise: %w", errno)
		}
	}
	after, err := resident()
	return before - after, err
}

// resident returns the resident memory of this process in bytes.
func resident() (int64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		return 0, fmt.Errorf("invalid /proc/self/statm: %w", err)
	}
	return pages * int64(os.Getpagesize()), nil
}

// mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// programMappings returns the mappings of this program's file that are not writable.
func programMappings() ([]mapping, error) {
	file, err := os.Readlink("/proc/self/exe") // of a file that was removed it ends in " (deleted)", as in maps
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	return readOnlyMappings(string(text), file)
}

// readOnlyMappings returns the mappings of a file that are not writable, from the text of /proc/self/maps.
func readOnlyMappings(maps, file string) ([]mapping, error) {
	var found []mapping
	for line := range strings.Lines(maps) {
		line = strings.TrimSuffix(line, "\n")
		// address, permissions, offset, device and inode, and a path that may contain spaces
		fields := strings.SplitN(line, " ", 6)
		if len(fields) < 6 || strings.TrimLeft(fields[5], " ") != file || strings.Contains(fields[1], "w") {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		begin, errBegin := strconv.ParseUint(from, 16, strconv.IntSize)
		end, errEnd := strconv.ParseUint(to, 16, strconv.IntSize)
		if errBegin != nil || errEnd != nil || end <= begin {
			return nil, fmt.Errorf("invalid line of /proc/self/maps: %q", line)
		}
		found = append(found, mapping{uintptr(begin), uintptr(end)})
	}
	if len(found) == 0 {
		return nil, errors.New("no mapping of its file found in /proc/self/maps")
	}
	return found, nil
}
