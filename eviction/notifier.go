package eviction

import (
	"context"

	"github.com/sublet-dev/agent/runtime"
)

// ThresholdNotifier reports that a threshold may have been met, as soon as the kernel
// does. It may report too often: each notification only causes a measurement.
type ThresholdNotifier interface {
	// Watch calls notify for each notification until ctx is done. notify does not
	// block. After an error that wraps runtime.ErrUnsupported, Watch is not called
	// again; after any other error it is retried.
	Watch(ctx context.Context, notify func()) error
}

// ThresholdUpdater is an optional interface of a ThresholdNotifier that must be given
// the usage at which to notify. UpdateThresholds is called after each measurement from
// the manager's goroutine, concurrently with Watch. It returns the signal whose next
// threshold the kernel reports from now on, so that it need not be polled, or "".
type ThresholdUpdater interface {
	UpdateThresholds(usage *runtime.NodeUsage, thresholds []Threshold) Signal
}

// updateNotifiers passes a measurement to each ThresholdUpdater.
func (m *Manager) updateNotifiers(u *runtime.NodeUsage) {
	clear(m.kernelSignals)
	for _, n := range m.cfg.Notifiers {
		if updater, ok := n.(ThresholdUpdater); ok {
			m.kernelSignals[updater.UpdateThresholds(u, m.state.thresholds)] = true
		}
	}
}
