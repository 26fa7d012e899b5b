package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/mkdir"
)

// hostPath checks that the path has the type given in the spec, and creates it if the
// type allows that. Symbolic links are followed, because the administrator controls
// the path.
func hostPath(h *corev1.HostPathVolumeSource) error {
	if !filepath.IsAbs(h.Path) { // valid, but it would depend on the working directory
		return fmt.Errorf("hostPath: %q must be absolute: %w", h.Path, ErrUnsafe)
	}
	pathType := corev1.HostPathUnset
	if h.Type != nil {
		pathType = *h.Type
	}
	switch pathType {
	case corev1.HostPathUnset:
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if _, err := os.Stat(h.Path); errors.Is(err, fs.ErrNotExist) {
			if err := mkdir.All(h.Path, 0o755); err != nil {
				return fmt.Errorf("hostPath: %w", err)
			}
		}
	case corev1.HostPathFileOrCreate:
		if _, err := os.Stat(h.Path); errors.Is(err, fs.ErrNotExist) { // also what a link leads to
			f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_WRONLY, 0o644)
			if err == nil {
				err = errors.Join(f.Chmod(0o644), f.Close()) // independent of the umask
			}
			if err != nil {
				return fmt.Errorf("hostPath: %w", err)
			}
		}
	default: // must exist
	}
	info, err := os.Stat(h.Path)
	if err != nil {
		return fmt.Errorf("hostPath of type %s: %w", pathType, err)
	}
	if !hasType(info.Mode(), pathType) {
		return fmt.Errorf("hostPath: %s is not a %s: its mode is %s", h.Path, pathType, info.Mode())
	}
	return nil
}

func hasType(mode fs.FileMode, pathType corev1.HostPathType) bool {
	switch pathType {
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
