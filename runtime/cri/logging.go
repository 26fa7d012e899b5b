package cri

import (
	"log/slog"

	"github.com/sublet-dev/agent/runtime"
)

func containerAttrs(ct runtime.Container, err error) []any {
	return []any{
		slog.String("pod", ct.Labels[runtime.LabelPodName]), slog.String("namespace", ct.Labels[runtime.LabelPodNamespace]),
		slog.String("uid", ct.Labels[runtime.LabelPodUID]), slog.String("container", ct.Name), slog.Any("error", err),
	}
}
