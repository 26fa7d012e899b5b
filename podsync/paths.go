package podsync

import (
	"errors"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/pathname"
	"github.com/sublet-dev/agent/runtime"
)

// ErrUnsafeName is wrapped by the error for a pod whose UID, namespace or name cannot
// be an element of a path.
var ErrUnsafeName = errors.New("invalid path element")

// LogDir returns the directory of the logs of a pod. It has one directory per
// container.
func (s *Syncer) LogDir(pod *corev1.Pod) (string, error) { return logDir(s.cfg.LogsDir, pod) }

// WrittenFiles returns the files and directories in the directory of the pod, besides
// its volumes, that its containers can write to: the hosts file and the termination
// messages. They need not exist.
func (s *Syncer) WrittenFiles(pod *corev1.Pod) []string {
	dir, err := podDir(s.cfg.PodsDir, pod.UID)
	if err != nil {
		return nil
	}
	return []string{filepath.Join(dir, runtime.HostsFile), filepath.Join(dir, runtime.MessagesDir)}
}

// podDir is <root>/<uid>.
func podDir(root string, uid types.UID) (string, error) {
	if err := checkPathElement("uid", string(uid)); err != nil {
		return "", err
	}
	return filepath.Join(root, string(uid)), nil
}

// logDir is <root>/<namespace>_<name>_<uid>, the layout of the kubelet.
func logDir(root string, pod *corev1.Pod) (string, error) {
	err := errors.Join(
		checkPathElement("namespace", pod.Namespace), checkPathElement("name", pod.Name), checkPathElement("uid", string(pod.UID)))
	if err != nil {
		return "", err
	}
	return filepath.Join(root, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID)), nil
}

func checkPathElement(field, value string) error {
	if !pathname.IsElement(value) {
		return fmt.Errorf("%s %q: %w", field, value, ErrUnsafeName)
	}
	return nil
}
