package hostprocess

import (
	"fmt"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/mounts"
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
	shared, err := mounts.IsShared(path)
	if err != nil {
		return err
	}
	if !shared {
		return fmt.Errorf("bidirectional propagation: %s is not on a shared mount; make it shared", path)
	}
	return nil
}
