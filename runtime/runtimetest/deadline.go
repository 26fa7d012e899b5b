package runtimetest

import (
	"context"
	"errors"
	"time"
)

// errTestTimeout ends the cases that run when the time of a test is over.
var errTestTimeout = errors.New("the time of go test is over; set a longer one with -timeout")

// maxTestReserve is how long before its deadline a test ends its cases at most, to remove their pods. A test of little
// time has a quarter of it for that.
const maxTestReserve = 30 * time.Second

// untilDeadline returns a context that ends before the deadline of a test, which would end the process with all pods
// of its cases left behind.
func untilDeadline(ctx context.Context, deadline func() (time.Time, bool)) (context.Context, context.CancelFunc) {
	end, ok := deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, end.Add(-min(maxTestReserve, time.Until(end)/4)), errTestTimeout)
}
