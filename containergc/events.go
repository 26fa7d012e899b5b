package containergc

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
)

// Recorder records events. It must not block.
type Recorder interface {
	Record(*corev1.Event)
}

// failed logs and records that a collection has failed.
func (c *Collector) failed(err error) {
	c.cfg.Logger.Warn("container garbage collection failed", logattr.Err(err))
	if c.cfg.Recorder != nil {
		message := strings.ReplaceAll(err.Error(), "\n", "; ") // one line, as kubectl shows it
		c.cfg.Recorder.Record(podspec.NewNodeEvent(c.cfg.NodeName, corev1.EventTypeWarning, "ContainerGCFailed", message, time.Now()))
	}
}
