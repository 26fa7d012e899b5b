package cri

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

// logPod logs an event in the lifecycle of a pod, with the attributes that
// identify the pod. It is called once per change of the runtime, and never per
// sync or inspection. pod may be nil.
func (c *Client) logPod(level slog.Level, pod *corev1.Pod, message string, attrs ...slog.Attr) {
	if pod == nil {
		return
	}
	ctx := context.Background() //nolint:forbidigo // a log record has no deadline, and no value of a context belongs into it
	all := append([]slog.Attr{logattr.Pod(pod), logattr.PodUID(pod.UID)}, attrs...)
	c.cfg.Logger.LogAttrs(ctx, level, message, all...) //nolint:sloglint // all callers give a constant
}

func sandboxID(id string) slog.Attr { return slog.String("sandboxID", id) }

func since(start time.Time) slog.Attr { return slog.Duration("duration", time.Since(start)) }

// containerAttrs identify a container of a pod.
func containerAttrs(name, id string, more ...slog.Attr) []slog.Attr {
	return append([]slog.Attr{slog.String("containerName", name), slog.String("containerID", id)}, more...)
}

// terminationReason is the reason for which the containers of a terminating pod
// are killed.
func terminationReason(t runtime.Termination) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Drained:
		return "NodeDraining"
	case t.Deleted:
		return "PodDeleted"
	default:
		return "PodTerminating"
	}
}
