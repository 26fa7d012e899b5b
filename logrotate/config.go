package logrotate

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// Runtime is the runtime whose container logs are rotated. Its methods must return
// when their context is done.
type Runtime interface {
	Pods(ctx context.Context) ([]runtime.Pod, error)
	// ReopenLog makes the runtime close the log of a container and open a new one at
	// the same path. Until it returns, the runtime may write to the old one.
	ReopenLog(ctx context.Context, containerID string) error
}

// ChangeCounter is a Runtime whose pods need not be listed again while they are the same. A
// podcache.Lister is one.
type ChangeCounter interface {
	// Changes returns a number that stays the same as long as Pods would return the same.
	// It must not block.
	Changes() uint64
}

// Config is the configuration of a Rotator. Runtime and LogsDir are required, unless
// MaxSize is negative.
type Config struct {
	Runtime Runtime
	LogsDir string // contains <namespace>_<name>_<uid>/<container>/<attempt>.log

	MaxSize  int64 // at which a log is rotated; negative: never. Default: 10 MiB
	MaxFiles int   // of one container, the current one included. Default: 5, at least 2

	// MonitorInterval is the interval between lists of containers, and the maximum
	// interval between two reads of the size of a growing log. Default: 10s.
	MonitorInterval time.Duration
	// SizePollInterval is the initial interval between two reads of the size of a log,
	// and the one for a log that was idle. A log that grows is read when it has grown
	// halfway to MaxSize, but every 20ms at most. Default: 500ms.
	SizePollInterval time.Duration
	// WaitForEvents has a goroutine wait for the inotify events of idle logs, instead of
	// looking for them every SizePollInterval, so that a node with nothing to log does not
	// wake up. In a bubble of testing/synctest it would keep time from advancing.
	WaitForEvents bool
	Timeout       time.Duration // of ReopenLog. Default: 10s
	MaxWorkers    int           // concurrent rotations. Default: 4

	Logger *slog.Logger // Default: discard
	Hooks  Hooks
}

// Hooks are called by the Rotator, from several goroutines, and must not block. Each may
// be nil.
type Hooks struct {
	// Rotated is called after each rotation, successful or not. bytes is the size of the
	// log before it.
	Rotated func(containerID string, bytes int64, duration time.Duration, err error)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		Rotated: safe.Hook4(log, "LogRotation.Rotated", h.Rotated, next.Rotated),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{Rotated: safe.Hook4(log, "Rotated", h.Rotated)}
}

// New returns a Rotator. It reports all errors in cfg at once and does no I/O.
func New(cfg Config) (*Rotator, error) {
	var errs []error
	if cfg.MaxSize >= 0 && (cfg.Runtime == nil || cfg.LogsDir == "") {
		errs = append(errs, errors.New("logrotate: Config.Runtime and LogsDir required"))
	}
	if err := errors.Join(append(errs, cfg.Check())...); err != nil {
		return nil, err
	}
	cfg.MaxSize, cfg.MaxFiles, cfg.MaxWorkers = cmp.Or(cfg.MaxSize, 10<<20), cmp.Or(cfg.MaxFiles, 5), cmp.Or(cfg.MaxWorkers, 4)
	cfg.MonitorInterval, cfg.SizePollInterval = cmp.Or(cfg.MonitorInterval, 10*time.Second), cmp.Or(cfg.SizePollInterval, 500*time.Millisecond)
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	return &Rotator{
		cfg: cfg, logs: make(map[string]*logState), ids: make(map[string]*logState), polled: make(map[*logState]struct{}), needsCleanup: make(chan string, 256), freeBytes: freeBytes,
	}, nil
}

// Check returns all errors in the sizes, numbers and durations, joined. New does so too, and
// checks what is required in addition.
func (c Config) Check() error {
	var errs []error
	if c.MaxFiles < 0 || c.MaxFiles == 1 || c.MaxWorkers < 0 {
		errs = append(errs, errors.New("logrotate: Config: MaxWorkers must not be negative, MaxFiles must be at least 2"))
	}
	if c.MonitorInterval < 0 || c.SizePollInterval < 0 || c.Timeout < 0 {
		errs = append(errs, errors.New("logrotate: Config: MonitorInterval, SizePollInterval and Timeout must not be negative"))
	}
	return errors.Join(errs...)
}

// Needs returns what log rotation depends on: nothing if it is off.
func (c Config) Needs() []runtime.Need {
	if c.MaxSize < 0 {
		return nil
	}
	return []runtime.Need{runtime.NeedFor[runtime.LogReopener]("log rotation")}
}
