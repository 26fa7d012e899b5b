// Package logattr makes the attributes that identify pods and errors in log
// records, so that every package uses the same keys and formats.
package logattr

import (
	"errors"
	"log/slog"
	"strings"

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

// Err returns the attribute "err", the text of err as Redact returns it, or the empty
// attribute, which handlers ignore, for a nil error.
func Err(err error) slog.Attr {
	if err == nil {
		return slog.Attr{}
	}
	if _, ok := errors.AsType[redactable](err); ok {
		return slog.Any("err", redacted{err})
	}
	return slog.Any("err", err)
}

// redactable is an error whose text is not for everybody.
type redactable interface {
	error
	Redacted() string
}

// redacted is an error without what is not for everybody. Resolving a LogValuer is safe if
// a method of the error panics.
type redacted struct{ err error }

func (r redacted) LogValue() slog.Value { return slog.StringValue(Redact(r.err)) }

// Redact returns the text of err with the texts of those errors in its tree that have a
// method Redacted() string replaced by its result. They contain what is not for everybody,
// such as the output of a command.
func Redact(err error) string { return redact(err.Error(), err) }

func redact(text string, err error) string {
	if e, ok := err.(redactable); ok && err.Error() != "" { //nolint:errorlint // the tree is walked here
		return strings.ReplaceAll(text, err.Error(), e.Redacted())
	}
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			text = redact(text, inner)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if inner != nil {
				text = redact(text, inner)
			}
		}
	}
	return text
}
