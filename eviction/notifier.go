package eviction

import (
	"context"

	"github.com/sublet-dev/agent/runtime"
)

// ThresholdNotifier tells that something may have become short, as soon as the kernel
// does. It may tell too often: each time the node is measured, and only what
// was measured counts.
type ThresholdNotifier interface {
	// Watch calls crossed for each notice until ctx is done. crossed does not
	// block. An error that wraps runtime.ErrUnsupported ends it for good, any
	// other is tried again.
	Watch(ctx context.Context, crossed func()) error
}

// ThresholdUpdater is a Notice that has to know at which figures to tell. Arm is called
// after each measurement, from one goroutine, also while Watch runs. It returns
// the signal of whose next threshold the kernel tells from now on, so that there
// is no need to look out for it; "" where it does not.
type ThresholdUpdater interface {
	UpdateThresholds(usage *runtime.NodeUsage, thresholds []Threshold) Signal
}

// updateNotifiers hands a measurement to the notices that want it.
func (m *Manager) updateNotifiers(u *runtime.NodeUsage) {
	clear(m.kernelSignals)
	for _, n := range m.cfg.Notifiers {
		if a, ok := n.(ThresholdUpdater); ok {
			m.kernelSignals[a.UpdateThresholds(u, m.state.thresholds)] = true
		}
	}
}
