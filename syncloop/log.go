package syncloop

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

func podAttrs(pod *corev1.Pod, more ...any) []any {
	return append([]any{logattr.Pod(pod), logattr.PodUID(pod.UID)}, more...)
}

func (p *PodManager) logPod(msg string, pod *corev1.Pod, more ...any) {
	p.cfg.Logger.Info(msg, podAttrs(pod, more...)...) //nolint:sloglint // the callers pass constants
}

// sourceAttr is the source of a pod, for the line that says how a new pod was handled.
func sourceAttr(pod *corev1.Pod) slog.Attr {
	return slog.String("source", pod.Annotations[podspec.AnnotationSource])
}

// logChange logs a change of the desired state. A new pod is logged when it is admitted,
// adopted or rejected. Changes of a status or of objects that a pod uses are not steps
// in its lifecycle, and only logged at debug level.
func (p *PodManager) logChange(c podsource.Change, pod *corev1.Pod) {
	known := p.get(pod.UID) != nil
	attrs := podAttrs(pod, slog.String("source", c.Source))
	switch {
	case c.Op == podsource.Remove && known:
		p.cfg.Logger.Info("pod removed from source", attrs...)
	case c.Op == podsource.Remove:
	case c.Op == podsource.Delete:
		if s := pod.DeletionGracePeriodSeconds; s != nil {
			attrs = append(attrs, slog.Duration("gracePeriod", time.Duration(*s)*time.Second))
		}
		p.cfg.Logger.Info("pod deletion requested", attrs...)
	case !known:
		p.cfg.Logger.Debug("pod added", attrs...)
	case c.Op == podsource.Update:
		p.cfg.Logger.Info("pod updated", attrs...)
	default:
		p.cfg.Logger.Debug("pod refreshed", attrs...)
	}
}
