// Package logattr makes the attributes that identify pods and errors in log
// records, so that every package uses the same keys and formats.
package logattr

import (
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod returns the attribute "pod", namespace/name of the pod, or the empty
// attribute, which handlers ignore, for a nil pod.
func Pod(pod *corev1.Pod) slog.Attr {
	if pod == nil {
		return slog.Attr{}
	}
	return PodName(pod.Namespace, pod.Name)
}

// PodName returns the attribute "pod" for a pod known by namespace and name only.
func PodName(namespace, name string) slog.Attr {
	return slog.String("pod", namespace+"/"+name)
}

// PodUID returns the attribute "podUID".
func PodUID(uid types.UID) slog.Attr { return slog.String("podUID", string(uid)) }

// Err returns the attribute "err", or the empty attribute, which handlers ignore,
// for a nil error.
func Err(err error) slog.Attr {
	if err == nil {
		return slog.Attr{}
	}
	return slog.Any("err", err)
}
