package main

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logtest"
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
