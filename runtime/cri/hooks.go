package cri

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

func (t *turn) postStart(context.Context, *corev1.Container, string) error { return nil }

func (t *turn) updateResources(context.Context, runtime.Action) error { return nil }
