// Package pageout makes the resident memory of an idle program smaller.
//
// Most of what an agent without pods has in memory is its program's file: the code and the constants of its start, and what the
// kernel maps around each page that is touched (fault-around, 64 KiB). After the start hardly any of it is needed again. Program asks
// the kernel to page it out; what is touched later is read from the file again. Nothing is lost, and no page that another process
// has mapped is taken from it.
//
// The price is paid by the first pods, whose code is read again, which takes time where the disk is slow. A kernel that is short of
// memory does the same by itself. So this is for machines on which the memory of idle programs is counted.
package pageout

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/sleep"
)

const defaultDelay = 5 * time.Second

// Config configures a Runner.
type Config struct {
	// Delay is how long the program has for its start. 0 is 5 seconds.
	Delay time.Duration
	// Logger receives how much was paged out, at level Debug, or why nothing was, at level Info. nil: nothing is logged.
	Logger *slog.Logger
}

// Runner pages out the program once. It is for agent.WithRunner.
type Runner struct {
	delay   time.Duration
	log     *slog.Logger
	program func() (int64, error)
}

// New returns a Runner. It fails if Config is invalid.
func New(cfg Config) (*Runner, error) {
	if cfg.Delay < 0 {
		return nil, fmt.Errorf("pageout: Config.Delay: %s must not be negative", cfg.Delay)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Runner{delay: cmp.Or(cfg.Delay, defaultDelay), log: cfg.Logger, program: Program}, nil
}

// Run calls Program after Config.Delay, and blocks until ctx is done. It always returns nil: a program that is not paged out
// works as well.
func (r *Runner) Run(ctx context.Context) error {
	if sleep.For(ctx, r.delay) == nil {
		r.pageOut()
	}
	<-ctx.Done()
	return nil
}

func (r *Runner) pageOut() {
	released, err := r.program()
	if err != nil {
		r.log.Info("program not paged out", logattr.Err(err))
		return
	}
	r.log.Debug("program paged out", slog.Int64("releasedBytes", released))
}

// Program asks the kernel to page out the code and the constants of this program, and returns by how many bytes its resident memory
// has become smaller. It blocks while the kernel works, a few milliseconds; other goroutines run on.
//
// The kernel takes only pages that no other process has mapped, and only if this process owns the program's file or may write to it,
// or the result is close to 0. A file on tmpfs stays in memory. The error wraps errors.ErrUnsupported on other systems than Linux, and before
// Linux 5.4.
func Program() (released int64, err error) {
	released, err = pageOut()
	if err != nil {
		return 0, fmt.Errorf("page out the program: %w", err)
	}
	return max(released, 0), nil
}
