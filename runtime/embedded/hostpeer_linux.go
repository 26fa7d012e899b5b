package embedded

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Features implements Featured.
func (h *HostProcess) Features() *v1.RuntimeHandlerFeatures {
	return &v1.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: h.isolated()}
}

// keep takes a copy of each source that is to be joined with the host in both
// directions, while it still is: the copy stays a peer of the host's mount when the
// namespace's own mounts part from it.
func (b *mounter) keep(mounts []*v1.Mount) error {
	for _, m := range mounts {
		if m.GetPropagation() != v1.MountPropagation_PROPAGATION_BIDIRECTIONAL {
			continue
		}
		if err := checkShared(m.GetHostPath()); err != nil {
			return fmt.Errorf("mount %q: %w", m.GetContainerPath(), err)
		}
		fd, err := openTree(unix.AT_FDCWD, m.GetHostPath(), 0)
		if err != nil {
			return fmt.Errorf("mount %q: %w", m.GetContainerPath(), err)
		}
		b.sources[m] = fd
	}
	return nil
}

// checkShared tells when nothing that is mounted below path could get out of it.
func checkShared(path string) error {
	id, err := mountID(unix.AT_FDCWD, path)
	if err != nil {
		return fmt.Errorf("find the mount of %s: %w", path, err)
	}
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	if !isShared(string(table), id) {
		return fmt.Errorf("bidirectional propagation needs a shared mount, which %s is not on", path)
	}
	return nil
}

// isShared looks a mount up by its number in the text of mountinfo, where the
// fields from the seventh to a hyphen tell how it is joined with others.
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
