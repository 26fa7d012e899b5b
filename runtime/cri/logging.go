package cri

import (
	"log/slog"

	"github.com/sublet-dev/agent/runtime"
)

func containerAttrs(ct runtime.Container, err error) []any {
	return []any{
		slog.String("pod", ct.Labels[labelPodName]), slog.String("namespace", ct.Labels[labelPodNamespace]),
		slog.String("uid", ct.Labels[labelPodUID]), slog.String("container", ct.Name), slog.Any("error", err),
	}
}
