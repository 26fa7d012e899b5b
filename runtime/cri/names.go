package cri

import (
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// nameTaken reports whether a create failed because its name is in use.
// containerd tells so in words only.
func nameTaken(err error) bool {
	if errors.Is(err, runtime.ErrExists) {
		return true
	}
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	said := e.status.Message()
	return strings.Contains(said, "is reserved for") || strings.Contains(said, "name is reserved")
}

// runtimeHandler returns the handler that the pod's runtime class means. There
// are no RuntimeClass objects on a node: the class is the handler's name.
func runtimeHandler(pod *corev1.Pod) string {
	if pod.Spec.RuntimeClassName == nil {
		return ""
	}
	return *pod.Spec.RuntimeClassName
}
