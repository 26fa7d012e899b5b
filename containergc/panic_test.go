package containergc_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/runtime"
)

// panicky is a runtime that panics when it is asked first.
type panicky struct {
	containergc.Containers
	asked int
}

func (p *panicky) Pods(context.Context) ([]runtime.Pod, error) {
	if p.asked++; p.asked == 1 {
		panic("pods")
	}
	return nil, nil
}

// AG-9: a panic in the runtime is that collection's error; the next one is made.
func TestCollector_Panics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(panicky)
		collected := 0
		c, err := containergc.New(containergc.Config{
			Containers: p, PodState: func(types.UID) containergc.PodState { return containergc.PodDesired },
			Hooks: containergc.Hooks{Collected: func(containergc.Result, error) { collected++; panic("hook") }},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(time.Hour - time.Second)
		cancel()
		require.NoError(t, <-done)
		assert.Equal(t, 59, p.asked, "the next one waits for its time")
		assert.Equal(t, 58, collected)
	})
}
