package cgroup

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// Reasons of events; the kubelet uses the same.
const (
	reasonEnforced    = "NodeAllocatableEnforced"
	reasonNotEnforced = "FailedNodeAllocatableEnforcement"
)

// Recorder receives Kubernetes events. It does not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// recordAllocatable records that the cgroup of all pods has got the limits of Config.Allocatable, or why not,
// when that has changed.
// held: m.tiers
func (m *Manager) recordAllocatable(q corev1.PodQOSClass, err error) {
	if q != corev1.PodQOSGuaranteed || len(m.cfg.Allocatable) == 0 || m.cfg.Recorder == nil {
		return
	}
	eventType, reason, message := corev1.EventTypeNormal, reasonEnforced, "All pods together are limited to what is allocatable on the node"
	if err != nil {
		eventType, reason, message = corev1.EventTypeWarning, reasonNotEnforced, "All pods together cannot be limited to what is allocatable on the node: "+err.Error()
	}
	if m.recorded == message {
		return
	}
	m.recorded = message
	m.cfg.Recorder.Record(podspec.NewNodeEvent(m.cfg.NodeName, eventType, reason, message, time.Now()))
}
