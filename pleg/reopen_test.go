package pleg

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

// breakingRuntime is a runtime whose event streams break after a while.
type breakingRuntime struct {
	*fakeRuntime
	mu       sync.Mutex
	closedAt time.Time       // the last stream; zero: none
	delays   []time.Duration // from the end of a stream to the next attempt
	after    time.Duration
	err      error
}

func (rt *breakingRuntime) Watch(ctx context.Context, _ func(types.UID)) error {
	rt.mu.Lock()
	if !rt.closedAt.IsZero() {
		rt.delays = append(rt.delays, time.Since(rt.closedAt))
	}
	after, err := rt.after, rt.err
	rt.mu.Unlock()
	if sleep.For(ctx, after) != nil {
		return context.Cause(ctx)
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.closedAt = time.Now()
	return err
}

// breakAfter sets how the next streams break, and returns the delays so far.
func (rt *breakingRuntime) breakAfter(d time.Duration, err error) (delays []time.Duration) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	delays = rt.delays
	rt.after, rt.err, rt.delays = d, err, nil
	return delays
}

// PL-4: a broken stream is reopened with a back-off from 100 ms to 30 s, which starts
// again after a stream that was open for longer than that. One that is not supported is
// tried every 10 min.
func TestStream_ReopenBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &breakingRuntime{fakeRuntime: newFakeRuntime(), err: errors.New("stream broke")}
		g, err := New(Config{Runtime: rt, Cache: discardCache{}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		time.Sleep(time.Hour)
		delays := rt.breakAfter(30*time.Second, errors.New("stream broke"))
		assert.Greater(t, len(delays), 100)
		backOff := 100 * time.Millisecond
		for _, d := range delays {
			assert.GreaterOrEqual(t, d, backOff/2)
			assert.Less(t, d, backOff)
			backOff = min(2*backOff, 30*time.Second)
		}
		time.Sleep(5 * time.Minute)
		for _, d := range rt.breakAfter(31*time.Second, errors.New("stream broke")) {
			assert.GreaterOrEqual(t, d, 15*time.Second, "the back-off continues")
		}
		time.Sleep(5 * time.Minute)
		delays = rt.breakAfter(0, runtime.ErrUnsupported)
		require.Greater(t, len(delays), 3)
		for _, d := range delays[2:] {
			assert.Less(t, d, 100*time.Millisecond, "the back-off starts again")
		}
		time.Sleep(45 * time.Minute)
		assert.Equal(t, 10*time.Minute, rt.breakAfter(0, nil)[2])
		cancel()
		require.NoError(t, <-done)
	})
}

// PL-4: a stream is open if the same Watch call is still under way.
func TestStream_OpenedByCallUnderWay(t *testing.T) {
	g, err := New(Config{Runtime: newFakeRuntime(), Cache: discardCache{}})
	require.NoError(t, err)
	for _, tt := range []struct {
		name     string
		call     uint64
		watching bool
		want     bool
	}{{"the call under way", 2, true, true}, {"an earlier call", 1, true, false}, {"a call that has returned", 2, false, false}} {
		g.stream = stream{calls: 2, watching: tt.watching}
		g.streamOpened(tt.call)
		assert.Equal(t, tt.want, g.stream.open, tt.name)
		assert.Equal(t, tt.want, len(g.relistCh) == 1, tt.name)
		if tt.want {
			<-g.relistCh
			assert.Equal(t, stream{calls: 2, watching: true, open: true, unlisted: true, relistPeriod: 5 * time.Minute}, g.stream)
		}
	}
}

// PL-4: the relist period of an open stream.
func TestStream_AdjustRelistPeriod(t *testing.T) {
	cfg := &Config{RelistPeriod: time.Second, EventedRelistPeriod: 5 * time.Second}
	s := stream{relistPeriod: 3 * time.Second}
	assert.Zero(t, s.adjustRelistPeriod(7, time.Time{}, cfg), "closed")
	s.open, s.unlisted = true, true
	assert.Zero(t, s.adjustRelistPeriod(7, time.Time{}, cfg), "the first relist since it opened")
	assert.Equal(t, 3*time.Second, s.relistPeriod)
	assert.Equal(t, 7, s.adjustRelistPeriod(7, time.Time{}, cfg))
	for _, seconds := range []int{1, 2, 4, 5, 5} {
		assert.Equal(t, time.Duration(seconds)*time.Second, s.relistPeriod)
		assert.Zero(t, s.adjustRelistPeriod(0, time.Time{}, cfg))
	}
	assert.Equal(t, 1, s.adjustRelistPeriod(1, time.Time{}, cfg))
	assert.Equal(t, time.Second, s.relistPeriod)
}
