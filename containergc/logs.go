package containergc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// LogRuntime is whose containers' logs are rotated. Its calls must end when their
// context does.
type LogRuntime interface {
	Pods(ctx context.Context) ([]runtime.Pod, error)
	// ReopenLog has the runtime close a container's log and open a new one at the
	// same path. Until it returns, the runtime may write to the old one.
	ReopenLog(ctx context.Context, containerID string) error
}

// RotatorConfig describes a Rotator. Runtime and LogsDir are required.
type RotatorConfig struct {
	Runtime LogRuntime
	LogsDir string // <namespace>_<name>_<uid>/<container>/<attempt>.log below it

	MaxSize  int64 // at which a log is rotated; default 10 MiB
	MaxFiles int   // of one container, the current one included; default 5, at least 2

	Period time.Duration // between listings of containers; default 10 s
	// Watch is the longest time between two looks at the size of a log. One that
	// grows fast is looked at as often as it takes, 20 ms at the shortest.
	// Default: 500 ms.
	Watch   time.Duration
	Timeout time.Duration // of ReopenLog; default 10 s
	Workers int           // rotations at a time; default 4

	Logger *slog.Logger // default: discard
	// Rotated is called after each rotation, from several goroutines. May be nil.
	Rotated func(containerID string, bytes int64, took time.Duration, err error)
}

// Rotator keeps the logs of running containers short.
type Rotator struct {
	cfg RotatorConfig

	mu   sync.Mutex
	logs map[string]*logState // by path; only looked after by Run

	untidy chan string // logs to tidy up; when full the next rotation does it
	wg     sync.WaitGroup
}

// logState is a log that is watched. Run alone uses it, but for busy.
type logState struct {
	id, path string
	size     int64
	at, due  time.Time // of the last look and the next
	busy     bool      // being rotated; guarded by Rotator.mu
	failures int       // in a row; guarded by Rotator.mu
}

const (
	quickest = 20 * time.Millisecond
	retryMax = time.Minute
)

// NewRotator returns a Rotator. It touches neither the runtime nor the disk.
func NewRotator(cfg RotatorConfig) (*Rotator, error) {
	var errs []error
	if cfg.Runtime == nil || cfg.LogsDir == "" {
		errs = append(errs, errors.New("containergc: nil Runtime or no LogsDir"))
	}
	if cfg.MaxSize == 0 {
		cfg.MaxSize = 10 << 20
	}
	if cfg.MaxFiles == 0 {
		cfg.MaxFiles = 5
	}
	if cfg.Workers == 0 {
		cfg.Workers = 4
	}
	if cfg.MaxSize < 0 || cfg.MaxFiles < 2 || cfg.Workers < 0 {
		errs = append(errs, errors.New("containergc: negative MaxSize or Workers, or fewer than 2 MaxFiles"))
	}
	if cfg.Period < 0 || cfg.Watch < 0 || cfg.Timeout < 0 {
		errs = append(errs, errors.New("containergc: negative Period, Watch or Timeout"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	cfg.Period, cfg.Watch = orElse(cfg.Period, 10*time.Second), orElse(cfg.Watch, 500*time.Millisecond)
	cfg.Timeout = orElse(cfg.Timeout, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Rotator{cfg: cfg, logs: make(map[string]*logState), untidy: make(chan string, 256)}, nil
}

// Run rotates logs until ctx is done; then it waits for what is under way and
// returns nil.
func (r *Rotator) Run(ctx context.Context) error {
	if err := os.MkdirAll(r.cfg.LogsDir, 0o755); err != nil { //nolint:gosec // as the kubelet's: log shippers read it
		return fmt.Errorf("make the logs folder: %w", err)
	}
	opened, err := os.OpenRoot(r.cfg.LogsDir)
	if err != nil {
		return fmt.Errorf("open the logs folder: %w", err)
	}
	defer func() { _ = opened.Close() }()
	root := logRoot{Root: opened, maxFiles: r.cfg.MaxFiles, renames: new(sync.Mutex)}
	defer r.wg.Wait()
	r.wg.Go(func() { r.tidyUp(ctx, root) })

	slots := make(chan struct{}, r.cfg.Workers)
	list := time.NewTicker(r.cfg.Period)
	defer list.Stop()
	look := time.NewTimer(0)
	defer look.Stop()
	r.list(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-list.C:
			r.list(ctx)
			look.Reset(0)
		case <-look.C:
			look.Reset(r.look(ctx, root, slots))
		}
	}
}

// list brings the set of logs up to date with the containers that run.
func (r *Rotator) list(ctx context.Context) {
	pods, err := r.cfg.Runtime.Pods(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.cfg.Logger.Warn("list pods for log rotation", slog.Any("error", err))
		}
		return
	}
	here := make(map[string]bool)
	for i := range pods {
		for j := range pods[i].Containers {
			c := &pods[i].Containers[j]
			path, ok := logFile(&pods[i], c)
			if !ok || c.State != runtime.Running {
				continue
			}
			here[path] = true
			if known := r.logs[path]; known == nil || known.id != c.ID {
				r.logs[path] = &logState{id: c.ID, path: path}
				r.tidyLater(path)
			}
		}
	}
	for path := range r.logs {
		if !here[path] {
			delete(r.logs, path)
		}
	}
}

// look measures the logs that are due, has those rotated that are long enough,
// and returns when the next one is due.
func (r *Rotator) look(ctx context.Context, root logRoot, slots chan struct{}) time.Duration {
	now := time.Now()
	next := now.Add(r.cfg.Watch)
	for _, l := range r.logs {
		if !l.due.After(now) && !r.isBusy(l) {
			r.measure(ctx, root, l, slots, now)
		}
		if l.due.Before(next) {
			next = l.due
		}
	}
	return max(next.Sub(now), quickest)
}

func (r *Rotator) isBusy(l *logState) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return l.busy
}

func (r *Rotator) measure(ctx context.Context, root logRoot, l *logState, slots chan struct{}, now time.Time) {
	size, err := root.size(l.path)
	was, at := l.size, l.at
	l.size, l.at, l.due = size, now, now.Add(r.cfg.Watch)
	switch {
	case errors.Is(err, errBeingMade):
		if root.stranded(l.path) {
			r.reopenLater(ctx, l, slots)
		}
		return
	case err != nil:
		r.cfg.Logger.Warn("look at a log", slog.String("log", l.path), slog.Any("error", err))
		return
	case size >= r.cfg.MaxSize:
		r.rotateLater(ctx, root, l, slots)
		return
	}
	if grown := size - was; grown > 0 && !at.IsZero() {
		// Half the time in which it gets there at this speed: it may speed up.
		left := time.Duration(float64(now.Sub(at)) * float64(r.cfg.MaxSize-size) / float64(grown) / 2)
		l.due = now.Add(min(max(left, quickest), r.cfg.Watch))
	}
}

// start runs work on a log if there is a free slot. Without one the log comes
// again soon.
func (r *Rotator) start(l *logState, slots chan struct{}, work func() error) {
	select {
	case slots <- struct{}{}:
	default:
		l.due = l.at.Add(quickest)
		return
	}
	r.mu.Lock()
	l.busy = true
	wait := min(time.Duration(l.failures*l.failures)*time.Second, retryMax)
	r.mu.Unlock()
	l.size, l.due = 0, l.at.Add(max(wait, quickest))
	r.wg.Go(func() {
		err := work()
		<-slots
		r.mu.Lock()
		defer r.mu.Unlock()
		l.busy = false
		if err != nil {
			l.failures++
		} else {
			l.failures = 0
		}
	})
}

func (r *Rotator) rotateLater(ctx context.Context, root logRoot, l *logState, slots chan struct{}) {
	bytes, began := l.size, l.at
	r.start(l, slots, func() error {
		err := root.rotate(l.path, began, func() error { return r.reopen(ctx, l.id) })
		if err != nil {
			r.cfg.Logger.Warn("rotate a log", slog.String("log", l.path), slog.Any("error", err))
		}
		if r.cfg.Rotated != nil {
			r.cfg.Rotated(l.id, bytes, time.Since(began), err)
		}
		r.tidyLater(l.path)
		return err
	})
}

// reopenLater ends a rotation that a former process began.
func (r *Rotator) reopenLater(ctx context.Context, l *logState, slots chan struct{}) {
	r.start(l, slots, func() error {
		err := r.reopen(ctx, l.id)
		if err != nil {
			r.cfg.Logger.Warn("reopen a log", slog.String("log", l.path), slog.Any("error", err))
		}
		return err
	})
}

// reopen is given its time though the agent is ending: a log that was renamed
// has no other way back.
func (r *Rotator) reopen(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	return r.cfg.Runtime.ReopenLog(ctx, id)
}

func (r *Rotator) tidyLater(path string) {
	select {
	case r.untidy <- path:
	default:
	}
}

// tidyUp compresses old logs, one at a time: that takes a processor.
func (r *Rotator) tidyUp(ctx context.Context, root logRoot) {
	for {
		select {
		case <-ctx.Done():
			return
		case path := <-r.untidy:
			if err := root.tidy(ctx, path); err != nil && ctx.Err() == nil {
				r.cfg.Logger.Warn("tidy up logs", slog.String("log", path), slog.Any("error", err))
			}
		}
	}
}
