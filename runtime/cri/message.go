package cri

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Bounds of termination messages, as the API states them.
const (
	messageLimit    = 4 << 10
	logMessageLimit = 2 << 10
	logMessageLines = 80
)

// terminationMessage returns what a container that ended left to say: what it
// wrote to its message file, else the end of its log if it failed and its
// policy says so, else what the runtime says. At most 4 KiB. RT-14
func (c *Client) terminationMessage(ct runtime.Container, st *v1.ContainerStatus) string {
	if ct.State != runtime.Exited {
		return ct.Message
	}
	a := st.GetAnnotations()
	if path := messageFile(st, a[runtime.AnnotationTerminationMessagePath]); path != "" {
		text, err := head(path, messageLimit)
		if err != nil {
			c.cfg.Logger.Warn("termination message cannot be read", containerAttrs(ct, err)...)
		}
		if len(text) > 0 {
			return strings.ToValidUTF8(string(text), "�")
		}
	}
	if corev1.TerminationMessagePolicy(a[runtime.AnnotationTerminationMessagePolicy]) == corev1.TerminationMessageFallbackToLogsOnError && ct.ExitCode != 0 && ct.LogPath != "" {
		text, err := logTail(ct.LogPath, logMessageLimit, logMessageLines)
		if err != nil {
			c.cfg.Logger.Warn("log cannot be read for a termination message", containerAttrs(ct, err)...)
		}
		if text != "" {
			return text
		}
	}
	return clip(ct.Message, messageLimit)
}

// messageFile returns where on the node the container's message file is.
func messageFile(st *v1.ContainerStatus, path string) string {
	if path == "" {
		return ""
	}
	for _, m := range st.GetMounts() {
		if m.GetContainerPath() == absolute(path) {
			return m.GetHostPath()
		}
	}
	return ""
}

// head reads the beginning of a regular file. Containers write these files:
// links are not followed and nothing that could block is opened for long.
func head(path string, limit int64) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, limit))
}

func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: path, Err: os.ErrInvalid}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// clip cuts s off after limit bytes, not within a character.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 {
		limit--
	}
	return s[:limit]
}
