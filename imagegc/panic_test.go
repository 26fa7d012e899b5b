package imagegc_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

// panicky is a store that panics when it is asked first.
type panicky struct {
	*store
	asked int
}

func (p *panicky) Images(ctx context.Context) ([]runtime.Image, error) {
	if p.asked++; p.asked == 1 {
		panic("images")
	}
	return p.store.Images(ctx)
}

// AG-9: a panic in the runtime is that collection's error; the next one is made.
func TestCollector_Panics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &panicky{store: newStore(1000)}
		collected := 0
		c, err := imagegc.New(imagegc.Config{
			Images: p, Hooks: imagegc.Hooks{Collected: func(imagegc.Result, error) { collected++; panic("hook") }},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(time.Hour)
		cancel()
		require.NoError(t, <-done)
		assert.Greater(t, p.asked, 10)
		assert.NotZero(t, collected)
	})
}
