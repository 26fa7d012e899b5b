package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent/internal/logattr"
)

const (
	maxFileName   = 255
	logLinkSuffix = ".log"
)

// logLinkName is the name of the link to the log of a container, by which log shippers know
// the pod: that of a kubelet, cut off at the end like it if it is too long for a file.
func logLinkName(pod, namespace, container, id string) string {
	name := pod + "_" + namespace + "_" + container + "-" + id
	return name[:min(len(name), maxFileName-len(logLinkSuffix))] + logLinkSuffix
}

// linkLog makes the link to the log of a container that was started. A failure is logged:
// the container runs.
func (t *applyRun) linkLog(container, id, logPath string) {
	dir := t.c.cfg.LogLinksDir
	if dir == "" || logPath == "" || t.sandboxConfig.GetLogDirectory() == "" {
		return
	}
	name := logLinkName(t.pod.Name, t.pod.Namespace, container, id)
	err := os.MkdirAll(dir, 0o755) //nolint:gosec // log shippers run as ordinary users
	switch {
	case err != nil:
	case filepath.Base(name) != name: // the runtime has chosen the id
		err = fmt.Errorf("container id %q is not part of a file name", id)
	default:
		err = os.Symlink(filepath.Join(t.sandboxConfig.GetLogDirectory(), logPath), filepath.Join(dir, name))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		t.c.cfg.Logger.Warn("linking container log failed", logattr.Pod(t.pod), slog.String("containerName", container), logattr.Err(err))
	}
}
