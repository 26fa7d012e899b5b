package hostprocess

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Features implements embedded.FeatureReporter.
func (h *Executor) Features() *v1.RuntimeHandlerFeatures {
	return &v1.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: h.isolated()}
}

// keep opens the sources with bidirectional propagation before the mounts of the
// namespace leave the host's propagation: the copy stays a peer of the host's mount.
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

// checkShared returns an error if mounts below path cannot propagate.
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
		return fmt.Errorf("bidirectional propagation: %s is not on a shared mount; make it shared", path)
	}
	return nil
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
