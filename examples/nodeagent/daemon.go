package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/syncloop"
	"github.com/sublet-dev/agent/systemd"
)

// daemonFlags are what a daemon needs to read its configuration again.
type daemonFlags struct {
	args    []string         // of parse
	reloads <-chan os.Signal // SIGHUP; nil: never
	level   *slog.LevelVar   // of the log
}

// Exit codes. A supervisor should not start the program again after exitOwnerID and exitUsage. 2 is the one of Go itself, after a
// panic and after the SIGABRT of a watchdog: then a restart helps.
const (
	exitFailed    = 1  // the agent or its runtime failed; a restart may help
	exitRootInUse = 3  // another agent has the root directory
	exitOwnerID   = 4  // the root directory has pods, but has lost the id of their owner
	exitUsage     = 64 // flags or configuration are invalid; EX_USAGE of sysexits.h
)

// usageError is an error of flags and configuration that is found after parse.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// asUsageError marks an error of flags and configuration, unless the system reports it: a restart may help then.
func asUsageError(err error) error {
	if _, isSystem := errors.AsType[syscall.Errno](err); isSystem {
		return err
	}
	return usageError{err}
}

func exitCode(err error) int {
	_, usage := errors.AsType[usageError](err)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, agent.ErrRootInUse):
		return exitRootInUse
	case errors.Is(err, agent.ErrOwnerID):
		return exitOwnerID
	case usage:
		return exitUsage
	default:
		return exitFailed
	}
}

// logger writes lines of the format of -log-format. The journal of systemd gets the priority of each, in place of its time.
func (f *flags) logger(w io.Writer) *slog.Logger {
	if f.daemon.level == nil {
		f.daemon.level = new(slog.LevelVar)
	}
	f.daemon.level.Set(levelOf(f.verbosity))
	file, isFile := w.(*os.File)
	journal := isFile && systemd.IsJournal(file, os.Getenv("JOURNAL_STREAM"))
	opts := &slog.HandlerOptions{Level: f.daemon.level}
	switch {
	case journal && f.logFormat == "json":
		return slog.New(systemd.NewJournalHandler(w, f.daemon.level, slog.NewJSONHandler))
	case journal:
		return slog.New(systemd.NewJournalHandler(w, f.daemon.level, slog.NewTextHandler))
	case f.logFormat == "json":
		return slog.New(slog.NewJSONHandler(w, opts))
	default:
		return slog.New(slog.NewTextHandler(w, opts))
	}
}

func levelOf(verbosity int) slog.Level {
	if verbosity >= 4 {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// daemon reports the agent to systemd, and reads the configuration again on SIGHUP.
type daemon struct {
	f          *flags
	log        *slog.Logger
	notifier   *systemd.Notifier
	reloadable []reloadable
	applied    map[string]string    // of their fields: what is in effect
	hard       []eviction.Threshold // of the start
}

func newDaemon(f *flags, a *agent.Agent, log *slog.Logger) (*daemon, error) {
	d := &daemon{f: f, log: log, applied: map[string]string{}}
	d.reloadable = d.reloads(a)
	for _, r := range d.reloadable {
		for _, path := range r.paths {
			d.applied[path] = f.config.effective.Text(path)
		}
	}
	capacity, err := f.capacity()
	if err != nil {
		return nil, err
	}
	s, err := f.config.effective.Settings(capacity)
	if err != nil {
		return nil, err
	}
	d.hard, _ = byKind(s.Eviction.Thresholds)
	d.notifier, err = systemd.New(systemd.Config{Alive: alive(a), Status: func() string { return statusLine(a) }, Logger: log})
	return d, err
}

// whileWaiting calls f, and reports to systemd that the start waits for something meanwhile.
func whileWaiting(ctx context.Context, log *slog.Logger, status string, f func()) error {
	starting := func() error { return errors.New(status) }
	notifier, err := systemd.New(systemd.Config{Alive: starting, Logger: log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { notifier.Waiting(ctx, status) })
	f()
	return nil
}

// alive returns a check of the loops of the agent, which a restart repairs. One of the runtime or a source is not
// repaired by it. The check itself hangs if a lock is never released.
func alive(a *agent.Agent) func() error {
	return func() error {
		c := a.Components()
		if err := c.SyncLoop.Healthy(); errors.Is(err, syncloop.ErrStalled) {
			return err
		}
		if err := c.PLEG.Healthy(); err != nil && c.RuntimeState.Healthy() == nil { // the runtime answers, but pods are not listed
			return err
		}
		return nil
	}
}

func statusLine(a *agent.Agent) string {
	if err := a.Healthy(); err != nil {
		return "not ready: " + err.Error()
	}
	return "ready"
}

// start runs the daemon until stop is called or ctx is done.
func (d *daemon) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = d.notifier.Run(ctx) }) // returns nil
	wg.Go(func() {
		for {
			select {
			case <-d.f.daemon.reloads:
				d.notifier.Reload(d.reload)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
