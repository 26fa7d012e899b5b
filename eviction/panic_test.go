package eviction_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
)

// panicky is a node that cannot be measured at first, and a notice.
type panicky struct{ asked, watched int }

func (p *panicky) Usage(context.Context, time.Time) (runtime.NodeUsage, error) {
	if p.asked++; p.asked < 5 {
		panic("usage")
	}
	return runtime.NodeUsage{}, nil
}

func (p *panicky) Watch(context.Context, func()) error {
	p.watched++
	panic("notice")
}

// AG-9: a panic in a callback ends only that iteration.
func TestManager_Panics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(panicky)
		measured := 0
		m, err := eviction.New(eviction.Config{
			Thresholds: hardThresholds("memory.available<200Mi"), Usage: p, Pods: newSim(), Notifiers: []eviction.ThresholdNotifier{p},
			Hooks: eviction.Hooks{Measured: func(time.Duration, error) { measured++; panic("hook") }},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		time.Sleep(2 * time.Minute)
		cancel()
		require.NoError(t, <-done)
		assert.GreaterOrEqual(t, p.asked, 10)
		assert.GreaterOrEqual(t, p.watched, 10)
		assert.NotZero(t, measured)
	})
}
