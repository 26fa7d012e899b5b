package sleep_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/internal/sleep"
)

func TestFor(t *testing.T) {
	errCause := errors.New("node shuts down")
	for name, test := range map[string]struct {
		duration, cancelAfter time.Duration // cancelAfter 0: cancelled before the call
		slept                 time.Duration
		err                   error
	}{
		"sleeps for the duration":                       {time.Minute, time.Hour, time.Minute, nil},
		"returns the cause when the context ends first": {time.Hour, time.Minute, time.Minute, errCause},
		"returns the cause of a context that has ended": {time.Hour, 0, 0, errCause},
		"does not block for zero":                       {0, time.Hour, 0, nil},
		"does not block for a negative duration":        {-time.Second, time.Hour, 0, nil},
		"returns the cause for zero too":                {0, 0, 0, errCause},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if test.cancelAfter == 0 {
					cancel(errCause)
				} else {
					defer time.AfterFunc(test.cancelAfter, func() { cancel(errCause) }).Stop()
				}
				startTime := time.Now()
				assert.Equal(t, test.err, sleep.For(ctx, test.duration))
				assert.Equal(t, test.slept, time.Since(startTime))
			})
		})
	}
}

func ExampleFor() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	fmt.Println(sleep.For(context.Background(), time.Millisecond))
	fmt.Println(sleep.For(ctx, time.Hour))
	// Output:
	// <nil>
	// context canceled
}

// Timers of different periods and starts fire together where their periods allow it.
func TestUntilMultiple(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which starts at a full hour
		began := time.Now()
		assert.Equal(t, 5*time.Second, sleep.UntilMultiple(5*time.Second))
		time.Sleep(7*time.Second + 250*time.Millisecond)
		for _, period := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second} {
			next := time.Since(began) + sleep.UntilMultiple(period)
			assert.Zero(t, next%period, "%s", period)
			assert.Greater(t, next, time.Since(began))
			assert.LessOrEqual(t, next, time.Since(began)+period)
		}
	})
}
