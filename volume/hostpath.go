package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/mkdir"
)

// hostPath checks that the path is what the pod says it is, and makes what it
// says may be made. Links are followed: the path is the administrator's.
func hostPath(h *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	switch kind {
	case corev1.HostPathUnset:
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if _, err := os.Stat(h.Path); errors.Is(err, fs.ErrNotExist) {
			if err := mkdir.All(h.Path, 0o755); err != nil {
				return fmt.Errorf("hostPath: %w", err)
			}
		}
	case corev1.HostPathFileOrCreate:
		f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err == nil {
			err = errors.Join(f.Chmod(0o644), f.Close()) // whatever the umask
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("hostPath: %w", err)
		}
	default: // is there or is not
	}
	info, err := os.Stat(h.Path)
	if err != nil {
		return fmt.Errorf("hostPath of type %s: %w", kind, err)
	}
	if !isKind(info.Mode(), kind) {
		return fmt.Errorf("hostPath: %s is no %s but %s", h.Path, kind, info.Mode())
	}
	return nil
}

func isKind(mode fs.FileMode, kind corev1.HostPathType) bool {
	switch kind {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		return mode.IsDir()
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		return mode.IsRegular()
	case corev1.HostPathSocket:
		return mode&fs.ModeSocket != 0
	case corev1.HostPathCharDev:
		return mode&fs.ModeCharDevice != 0
	case corev1.HostPathBlockDev:
		return mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0
	default:
		return false
	}
}
