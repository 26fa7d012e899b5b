package cri

import (
	"cmp"
	"errors"
	"io/fs"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// Bounds of termination messages, as the API states them.
const (
	messageLimit    = 4 << 10
	logMessageLimit = 2 << 10
	logMessageLines = 80
)

// terminationMessage returns what a container that ended left to say: what it
// wrote to its message file, else the end of its log if it failed and its
// policy says so, else what the runtime says. Of a file or log that is too long
// the end counts, where the error is: 4 KiB of the file, 2 KiB or 80 lines of
// the log. For an unreadable file the error is returned instead, as the kubelet does:
// this is asked at each inspection, too often for a log. RT-14
func (c *Client) terminationMessage(ct runtime.Container, st *v1.ContainerStatus) string {
	if ct.State != runtime.Exited {
		return ct.Message
	}
	a := st.GetAnnotations()
	unread := ""
	if path := messageFile(st, a[runtime.AnnotationTerminationMessagePath]); path != "" {
		text, err := tail(path, messageLimit)
		if len(text) > 0 {
			return textTail(text)
		}
		unread = unreadable("termination message", err)
	}
	if corev1.TerminationMessagePolicy(a[runtime.AnnotationTerminationMessagePolicy]) == corev1.TerminationMessageFallbackToLogsOnError && ct.ExitCode != 0 && ct.LogPath != "" {
		text, err := logTail(ct.LogPath, logMessageLimit, logMessageLines)
		if text != "" {
			return text
		}
		unread = cmp.Or(unread, unreadable("log for the termination message", err))
	}
	return cmp.Or(clip(ct.Message, messageLimit), unread)
}

// unreadable tells why a file could not be read, without its path on the node.
// One that is missing says nothing: it goes with its pod's directory.
func unreadable(what string, err error) string {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return "read " + what + ": " + err.Error()
}

// textTail makes text of the end of a file, which may begin within a character.
func textTail(b []byte) string {
	for range min(utf8.UTFMax-1, len(b)-1) {
		if utf8.RuneStart(b[0]) {
			break
		}
		b = b[1:]
	}
	return lastBytes(strings.ToValidUTF8(string(b), "�"), messageLimit)
}

// lastBytes cuts the beginning of text off, and no part of a character stays.
func lastBytes(text string, limit int) string {
	return strings.ToValidUTF8(text[max(len(text)-limit, 0):], "")
}

// messageFile returns where on the node the container's message file is.
func messageFile(st *v1.ContainerStatus, path string) string {
	if path == "" {
		return ""
	}
	for _, m := range st.GetMounts() {
		if m.GetContainerPath() == translate.AbsolutePath(path) {
			return m.GetHostPath()
		}
	}
	return ""
}

// clip cuts the end of text off, and no part of a character stays.
func clip(text string, limit int) string {
	return strings.ToValidUTF8(text[:min(len(text), limit)], "")
}
