package containergc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sublet-dev/agent/internal/mkdir"
	"github.com/sublet-dev/agent/internal/safe"
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

	// MonitorInterval is the time between listings of containers, and the longest between two
	// looks at a log that grows. Default: 10 s.
	MonitorInterval time.Duration
	// SizePollInterval is the time after which a log is looked at that was silent, or that the
	// disk has lost enough room for, and the interval to begin with. One that grows
	// steadily is looked at each time it has come half the way to MaxSize, but every
	// 20 ms at most. Default: 500 ms.
	SizePollInterval time.Duration
	Timeout          time.Duration // of ReopenLog; default 10 s
	MaxWorkers       int           // rotations at a time; default 4

	Logger *slog.Logger // default: discard
	// Rotated is called after each rotation, from several goroutines. May be nil.
	Rotated func(containerID string, bytes int64, took time.Duration, err error)
}

// Rotator keeps the logs of running containers short.
type Rotator struct {
	cfg RotatorConfig

	// Only Run uses these.
	logs   map[string]*logState   // by path
	ids    map[string]*logState   // the same, by container
	polled map[*logState]struct{} // of these, what may be due within Period
	bell   *logWatch              // wakes the others; nil where the kernel has none

	listed uint64 // how often containers were listed

	mu           sync.Mutex  // guards what logState says it does
	needsCleanup chan string // logs to tidy up; when full the next rotation does it
	wg           sync.WaitGroup
}

// logState is a log that is watched. Run alone uses it, but for what mu guards.
type logState struct {
	id, path string
	pollSchedule
	listed   uint64 // the last listing that it was in
	missing  bool
	watch    int32 // what the bell knows it by while it is asleep
	busy     bool  // being rotated; guarded by Rotator.mu
	failures int   // in a row; guarded by Rotator.mu
}

const (
	minPollInterval = 20 * time.Millisecond
	retryMax        = time.Minute
	// maxPollInterval is the time between two looks at a log that is silent or not there,
	// though the kernel has told of nothing.
	maxPollInterval = 5 * time.Minute
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
	if cfg.MaxWorkers == 0 {
		cfg.MaxWorkers = 4
	}
	if cfg.MaxSize < 0 || cfg.MaxFiles < 2 || cfg.MaxWorkers < 0 {
		errs = append(errs, errors.New("containergc: negative MaxSize or Workers, or fewer than 2 MaxFiles"))
	}
	if cfg.MonitorInterval < 0 || cfg.SizePollInterval < 0 || cfg.Timeout < 0 {
		errs = append(errs, errors.New("containergc: negative Period, Watch or Timeout"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	cfg.MonitorInterval, cfg.SizePollInterval = orElse(cfg.MonitorInterval, 10*time.Second), orElse(cfg.SizePollInterval, 500*time.Millisecond)
	cfg.Timeout = orElse(cfg.Timeout, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Rotator{
		cfg: cfg, logs: make(map[string]*logState), ids: make(map[string]*logState), polled: make(map[*logState]struct{}), needsCleanup: make(chan string, 256),
	}, nil
}

// Run rotates logs until ctx is done; then it waits for what is under way and
// returns nil.
func (r *Rotator) Run(ctx context.Context) error {
	if err := mkdir.All(r.cfg.LogsDir, 0o755); err != nil { // as the kubelet's: log shippers read it
		return fmt.Errorf("make the logs folder: %w", err)
	}
	opened, err := os.OpenRoot(r.cfg.LogsDir)
	if err != nil {
		return fmt.Errorf("open the logs folder: %w", err)
	}
	defer func() { _ = opened.Close() }()
	root := logRoot{Root: opened, maxFiles: r.cfg.MaxFiles, renames: new(sync.Mutex)}
	if r.bell, err = newBell(); err != nil {
		r.cfg.Logger.Warn("silent logs are looked at again and again", slog.Any("error", err))
	}
	defer r.bell.close()
	defer r.wg.Wait()
	r.wg.Go(func() { r.tidyUp(ctx, root) })

	slots := make(chan struct{}, r.cfg.MaxWorkers)
	list := time.NewTicker(r.cfg.MonitorInterval)
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
			look.Reset(r.pollLogs(ctx, root, slots))
		}
	}
}

// list brings the set of logs up to date with the containers that run.
func (r *Rotator) list(ctx context.Context) {
	var pods []runtime.Pod
	err := safe.Call(r.cfg.Logger, "list pods", func() (err error) { pods, err = r.cfg.Runtime.Pods(ctx); return err })
	if err != nil {
		if ctx.Err() == nil {
			r.cfg.Logger.Warn("list pods for log rotation", slog.Any("error", err))
		}
		return
	}
	r.listed++
	for i := range pods {
		for j := range pods[i].Containers {
			if c := &pods[i].Containers[j]; c.State == runtime.Running {
				r.found(&pods[i], c)
			}
		}
	}
	now := time.Now()
	for _, l := range r.logs {
		switch {
		case l.listed != r.listed:
			r.drop(l)
		case l.isDue(now):
			r.polled[l] = struct{}{}
		}
	}
}

// found notes that a container runs. Most are known, by their id.
func (r *Rotator) found(pod *runtime.Pod, c *runtime.Container) {
	l := r.ids[c.ID]
	if l == nil {
		path, ok := logFile(pod, c)
		if !ok {
			return
		}
		r.drop(r.logs[path])
		l = &logState{id: c.ID, path: path}
		r.ids[c.ID], r.logs[path], r.polled[l] = l, l, struct{}{}
		r.tidyLater(path)
	}
	l.listed = r.listed
}

func (r *Rotator) drop(l *logState) {
	if l == nil {
		return
	}
	r.bell.forget(l)
	delete(r.polled, l)
	delete(r.logs, l.path)
	delete(r.ids, l.id)
}

// wake has a log that sleeps looked at now.
func (r *Rotator) wake(l *logState) {
	if _, ok := r.polled[l]; !ok {
		r.polled[l] = struct{}{}
		l.pollNow()
	}
}

// pollLogs measures the logs that are due, has those rotated that are long enough,
// and returns when the next one is due.
func (r *Rotator) pollLogs(ctx context.Context, root logRoot, slots chan struct{}) time.Duration {
	if r.bell.drainEvents(r.wake) { // it has missed some
		for _, l := range r.logs {
			r.wake(l)
		}
	}
	now := time.Now()
	next := now.Add(r.cfg.SizePollInterval)
	if len(r.polled) == 0 {
		return r.cfg.SizePollInterval
	}
	room := freeBytes(r.cfg.LogsDir)
	for l := range r.polled {
		if l.isDue(now) || !l.missing && l.isDiskLow(r.cfg.MaxSize, room) {
			if !r.isBusy(l) {
				r.measure(ctx, root, l, slots, now, room)
			}
		}
		if l.due.Before(next) {
			next = l.due
		}
	}
	return max(next.Sub(now), minPollInterval)
}

func (r *Rotator) isBusy(l *logState) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return l.busy
}

func (r *Rotator) measure(ctx context.Context, root logRoot, l *logState, slots chan struct{}, now time.Time, room uint64) {
	size, err := root.size(l.path)
	if errors.Is(err, errBeingMade) {
		l.missing = true
		if l.retry(now, r.cfg.SizePollInterval, maxPollInterval); l.wait > r.cfg.MonitorInterval {
			delete(r.polled, l) // listing finds that it is due
		}
		if root.needsReopen(l.path) {
			r.reopenLater(ctx, l, slots)
		}
		return
	}
	if l.missing {
		l.missing, l.pollSchedule = false, pollSchedule{}
	}
	if err != nil {
		l.retry(now, r.cfg.SizePollInterval, r.cfg.MonitorInterval)
		r.cfg.Logger.Warn("look at a log", slog.String("log", l.path), slog.Any("error", err))
		return
	}
	silent := l.seen(size, now, room, bounds{full: r.cfg.MaxSize, watch: r.cfg.SizePollInterval, longest: r.cfg.MonitorInterval})
	switch {
	case size >= r.cfg.MaxSize:
		r.rotateLater(ctx, root, l, slots)
	case silent && r.bell.watch(filepath.Join(r.cfg.LogsDir, l.path), l):
		// Whatever was written before the kernel was asked shows now.
		if again, err := root.size(l.path); err == nil && again == size {
			l.due = now.Add(maxPollInterval)
			delete(r.polled, l)
		}
	}
}

// start runs work on a log if there is a free slot. Without one the log comes
// again soon.
func (r *Rotator) start(l *logState, slots chan struct{}, work func() error) {
	r.polled[l] = struct{}{}
	select {
	case slots <- struct{}{}:
	default:
		l.due = l.at.Add(minPollInterval)
		return
	}
	r.mu.Lock()
	l.busy = true
	wait := min(time.Duration(l.failures*l.failures)*time.Second, retryMax)
	r.mu.Unlock()
	l.begin(max(wait, minPollInterval))
	r.wg.Go(func() {
		err := safe.Call(r.cfg.Logger, "rotate log", work)
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
			safe.Do(r.cfg.Logger, "hook Rotated", func() { r.cfg.Rotated(l.id, bytes, time.Since(began), err) })
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
	case r.needsCleanup <- path:
	default:
	}
}

// tidyUp compresses old logs, one at a time: that takes a processor.
func (r *Rotator) tidyUp(ctx context.Context, root logRoot) {
	for {
		select {
		case <-ctx.Done():
			return
		case path := <-r.needsCleanup:
			if err := root.tidy(ctx, path); err != nil && ctx.Err() == nil {
				r.cfg.Logger.Warn("tidy up logs", slog.String("log", path), slog.Any("error", err))
			}
		}
	}
}
