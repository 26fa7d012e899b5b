// Package logpath has the layout of the logs directory, which is the kubelet's, and opens its files.
package logpath

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sublet-dev/agent/runtime"
)

// Container returns the path of a container's log in the logs directory:
// <namespace>_<name>_<uid>/<container>/<attempt>.log. ok is false for invalid names,
// because they come from labels that any client of the runtime can set.
func Container(pod *runtime.Pod, c *runtime.Container) (path string, ok bool) {
	dir := pod.Namespace + "_" + pod.Name + "_" + string(pod.UID)
	if pod.Namespace == "" || pod.Name == "" || pod.UID == "" || !isElement(dir) || !isElement(c.Name) {
		return "", false
	}
	return filepath.Join(dir, c.Name, strconv.FormatUint(uint64(c.Attempt), 10)+".log"), true
}

// isElement reports whether s can be one element of a path on any system.
func isElement(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\\\x00")
}
