package runtimetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTestRuntime_EndsItsCasesBeforeTheTestIsEnded(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{10 * time.Minute: 9*time.Minute + 30*time.Second, 20 * time.Second: 15 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := untilDeadline(t.Context(), func() (time.Time, bool) { return time.Now().Add(timeout), true })
			defer cancel()
			start := time.Now()
			<-ctx.Done()
			assert.Equal(t, want, time.Since(start))
			require.ErrorIs(t, context.Cause(ctx), errTestTimeout)
			assert.ErrorContains(t, context.Cause(ctx), "-timeout")
		})
	}
}

func TestTestRuntime_NeedsNoDeadline(t *testing.T) {
	ctx, cancel := untilDeadline(t.Context(), func() (time.Time, bool) { return time.Time{}, false })
	cancel()
	assert.NoError(t, ctx.Err())
}
