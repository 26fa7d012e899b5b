package main

import (
	"context"
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// simulatedPods is the server.Streamer of pods without processes.
type simulatedPods struct{}

var errSimulated = fmt.Errorf("pods are simulated and have no processes; give -runtime-endpoint to run containers: %w", runtime.ErrUnsupported)

func (simulatedPods) ExecURL(context.Context, *corev1.Pod, *corev1.PodExecOptions) (*url.URL, error) {
	return nil, errSimulated
}

func (simulatedPods) AttachURL(context.Context, *corev1.Pod, *corev1.PodAttachOptions) (*url.URL, error) {
	return nil, errSimulated
}

func (simulatedPods) PortForwardURL(context.Context, *corev1.Pod, *corev1.PodPortForwardOptions) (*url.URL, error) {
	return nil, errSimulated
}
