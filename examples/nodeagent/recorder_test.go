package main

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/podsource"
)

// An event about the node, as of a manifest that names no pod, is not logged as one of a
// pod.
func TestLogRecorder_NamesTheObject(t *testing.T) {
	for name, tt := range map[string]struct {
		object corev1.ObjectReference
		want   string
	}{
		"a pod":  {corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"}, "level=WARN msg=event pod=default/web reason=Test"},
		"a node": {corev1.ObjectReference{Kind: "Node", Name: "edge-1"}, "level=WARN msg=event node=edge-1 reason=Test"},
	} {
		t.Run(name, func(t *testing.T) {
			var log logtest.Buffer
			logRecorder{slog.New(slog.NewTextHandler(&log, nil))}.Record(&corev1.Event{
				InvolvedObject: tt.object, Type: corev1.EventTypeWarning, Reason: "Test", Message: "of the recorder", Count: 1,
			})
			assert.Contains(t, log.String(), tt.want)
		})
	}
}

// What the agent logs itself is not logged twice.
func TestLogRecorder_LogsWarnings(t *testing.T) {
	var log logtest.Buffer
	for reason, kind := range map[string]string{
		"Started": corev1.EventTypeNormal, "BackOff": corev1.EventTypeWarning, "Unhealthy": corev1.EventTypeWarning,
		podsource.ReasonInvalid: corev1.EventTypeWarning, podsource.ReasonUnavailable: corev1.EventTypeWarning, podsource.ReasonDuplicate: corev1.EventTypeWarning,
	} {
		logRecorder{slog.New(slog.NewTextHandler(&log, nil))}.Record(&corev1.Event{Type: kind, Reason: reason})
	}
	assert.Contains(t, log.String(), "reason=Unhealthy")
	assert.Equal(t, 1, strings.Count(log.String(), "msg=event"))
}
