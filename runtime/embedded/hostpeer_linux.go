package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Features implements Featured.
func (h *HostProcess) Features() *v1.RuntimeHandlerFeatures {
	return &v1.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: h.isolated() && knowsSetattr()}
}

// knowsSetattr reports whether the kernel can change a mount with all below it.
func knowsSetattr() bool {
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{})
	return !errors.Is(err, unix.ENOSYS)
}

// keep takes a copy of each source that is to be joined with the host in both
// directions, while it still is: the copy stays a peer of the host's mount when the
// namespace's own mounts part from it.
func (b *binder) keep(mounts []*v1.Mount) error {
	for _, m := range mounts {
		if m.GetPropagation() != v1.MountPropagation_PROPAGATION_BIDIRECTIONAL {
			continue
		}
		source, err := filepath.EvalSymlinks(m.GetHostPath())
		if err != nil {
			return err
		}
		if err := checkShared(source); err != nil {
			return fmt.Errorf("mount %q: %w", m.GetContainerPath(), err)
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("mount %q: copy %s: %w", m.GetContainerPath(), source, err)
		}
		b.peers[m] = fd
	}
	return nil
}

// drop lets go of what keep took. Those that were mounted stay so.
func (b *binder) drop() {
	for _, fd := range b.peers {
		_ = unix.Close(fd)
	}
}

// checkShared tells when nothing that is mounted below path could get out of it.
func checkShared(path string) error {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &st); err != nil {
		return fmt.Errorf("find the mount of %s: %w", path, err)
	}
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	if !isShared(string(table), st.Mnt_id) {
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
