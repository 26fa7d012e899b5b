package kube

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/util/certificate"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/sleep"
)

const (
	clockPeriod = 10 * time.Minute // of checks whether the wall clock was set
	minClockSet = time.Minute      // the least by which it counts as set
)

// runManager runs a certificate manager until ctx is done, and another one when the wall clock was set. A
// manager reads from the wall clock how long it is until a renewal, and waits on the monotonic clock: on a board
// whose clock starts in 1970 until long after the certificate has expired, and, as that clock stands still while a
// machine is suspended, by as much too long on that one. An error is that of the first manager.
func runManager(ctx context.Context, log *slog.Logger, now func() time.Time, newManager func() (certificate.Manager, error)) error {
	manager, err := newManager()
	if err != nil {
		return err
	}
	manager.Start()
	defer func() { manager.Stop() }()
	for since := now(); ; {
		if wasSet(since, now()) {
			if next, err := newManager(); err != nil {
				log.Warn("certificate not scheduled for renewal again after the clock was set", logattr.Err(err))
			} else {
				log.Info("certificate scheduled for renewal again, clock was set")
				manager.Stop()
				manager, since = next, now()
				manager.Start()
			}
		}
		if sleep.For(ctx, clockPeriod) != nil {
			return nil
		}
	}
}

// wasSet reports whether the wall clock was set since a time, or the monotonic one stood still.
func wasSet(since, now time.Time) bool {
	return (now.Round(0).Sub(since.Round(0)) - now.Sub(since)).Abs() >= minClockSet
}
