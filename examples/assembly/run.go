package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
)

// errExited is the error of a component that returned nil before it was stopped.
var errExited = errors.New("component exited unexpectedly")

// run runs the assembly until ctx is done, and leaves the pods running. It continues where
// a previous one on the same root directory ended: restored statuses make restarts count
// on, pods that still run in the runtime are adopted when their source delivers them, and
// of two that have one name the one that ran keeps it.
//
// The order of the stages is the order of the stop. Each stage writes to the next ones: no
// change arrives after the sources, nothing is evicted or collected without the loop's
// knowledge, no pod is started by a loop that stops; running syncs end while they can
// still be observed, and what they have observed is in the last statuses.
func (a *assembly) run(ctx context.Context) error {
	previous, err := a.saved.Load()
	if err != nil { // the statuses that could be read are returned as well
		a.logger.Warn("reading statuses of the previous process failed", slog.Any("err", err))
	}
	a.statuses.Restore(previous...)
	a.imageGC.Restore(previous...)
	a.mux.Restore(previous...)
	return runStages(ctx,
		stage{"sources": a.mux.Run},
		stage{"imagegc": a.imageGC.Run, "containergc": a.containerGC.Run, "stats": a.stats.Run, "eviction": a.eviction.Run},
		stage{"syncloop": a.loop.Run},
		stage{"podworkers": a.workers.Run},
		stage{"probe": a.prober.Run},
		stage{"pleg": a.pleg.Run},
		stage{"status": a.statuses.Run},
	)
}

// A stage has the components that are stopped together, by name. Each blocks until its
// context is done and returns nil then.
type stage map[string]func(context.Context) error

// runStages starts all stages. When ctx is done or a component returns, it stops them from
// the first to the last and waits for each. It returns the first error of each stage.
func runStages(ctx context.Context, stages ...stage) error {
	ctx, stopAll := context.WithCancel(ctx)
	defer stopAll()
	var stops []func() error
	for _, s := range stages {
		stageCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		var components errgroup.Group
		for name, run := range s {
			components.Go(func() error {
				defer stopAll()
				err := run(stageCtx)
				if err == nil && stageCtx.Err() == nil {
					err = errExited
				}
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				return nil
			})
		}
		stops = append(stops, func() error {
			cancel()
			return components.Wait()
		})
	}
	<-ctx.Done()
	var errs []error
	for _, stop := range stops {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}
