package logrotate

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/logpath"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

const (
	minPollInterval = 20 * time.Millisecond
	retryMax        = time.Minute
	// maxPollInterval is the interval between two reads of a log that is idle or does not
	// exist, without an inotify event.
	maxPollInterval = 5 * time.Minute
)

// Rotator rotates the logs of running containers.
type Rotator struct {
	cfg Config

	// Owned by Run's goroutine.
	logs     map[string]*logState   // by path
	ids      map[string]*logState   // the same, by container
	polled   map[*logState]struct{} // of these, those that may be due within MonitorInterval
	nextDue  time.Time              // none of the others is due before
	logWatch *logWatch              // for the others; nil without inotify
	waits    bool                   // for its events

	listed  uint64 // number of lists of containers
	changes uint64 // of a ChangeCounter, before the last list

	mu           sync.Mutex  // guards fields of logState
	needsCleanup chan string // logs with rotated files to clean up; if full, the next rotation does it
	wg           sync.WaitGroup

	freeBytes func(dir string) uint64 // of the disk
}

// logState is a log of a running container. It is owned by Run's goroutine, except what
// Rotator.mu guards.
type logState struct {
	id, path string
	pollSchedule
	listed   uint64 // the last list that contained it
	existed  bool   // it was there: a runtime need not write logs
	missing  bool
	since    time.Time // when it was found missing
	watch    int32     // inotify descriptor while it is not polled
	busy     bool      // being rotated; guarded by Rotator.mu
	failures int       // consecutive; guarded by Rotator.mu
	retryAt  time.Time // not to be rotated before; guarded by Rotator.mu
}

// Run rotates logs until ctx is done. Then it waits for rotations in progress and
// returns nil.
func (r *Rotator) Run(ctx context.Context) error {
	if r.cfg.MaxSize < 0 {
		<-ctx.Done()
		return nil
	}
	opened, err := r.openRoot()
	if err != nil {
		return err
	}
	var root atomic.Pointer[logRoot]
	root.Store(&logRoot{Root: opened, maxFiles: r.cfg.MaxFiles, renames: new(sync.Mutex)})
	defer func() { _ = root.Load().Close() }()
	if r.logWatch, err = newLogWatch(); err != nil {
		r.cfg.Logger.Warn("falling back to polling container logs, inotify unavailable", logattr.Err(err))
	}
	defer r.wg.Wait()
	defer r.logWatch.close()
	r.wg.Go(func() { r.runCleanup(ctx, root.Load) })
	var events <-chan struct{} // nil: they are looked for
	if r.cfg.WaitForEvents {
		events = r.logWatch.notify(&r.wg)
	}
	r.waits = events != nil

	slots := make(chan struct{}, r.cfg.MaxWorkers)
	list := time.NewTimer(sleep.UntilMultiple(r.cfg.MonitorInterval))
	defer list.Stop()
	poll := time.NewTimer(0)
	defer poll.Stop()
	r.list(ctx)
	var lastPoll, nextPoll time.Time
	setPoll := func(wait time.Duration) {
		nextPoll = time.Now().Add(wait)
		poll.Reset(wait)
	}
	notified := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-list.C:
			r.followRoot(&root)
			r.list(ctx)
			list.Reset(sleep.UntilMultiple(r.cfg.MonitorInterval))
			setPoll(0)
		case <-events:
			notified = true
			if at := lastPoll.Add(r.cfg.SizePollInterval); at.Before(nextPoll) { // with the events of other logs until then
				setPoll(time.Until(at))
			}
		case <-poll.C:
			lastPoll = time.Now()
			setPoll(r.pollLogs(ctx, *root.Load(), slots))
			if notified {
				notified = false
				r.logWatch.awaitNext()
			}
		}
	}
}

// list updates the set of logs from the running containers, and has those polled that are due.
func (r *Rotator) list(ctx context.Context) {
	previous := r.listed
	if !r.listContainers(ctx) {
		return
	}
	now := time.Now()
	if r.listed == previous && now.Before(r.nextDue) {
		return
	}
	r.nextDue = now.Add(maxPollInterval)
	for _, l := range r.logs {
		switch {
		case l.listed != r.listed:
			r.drop(l)
		case l.isDue(now):
			r.polled[l] = struct{}{}
		case l.due.Before(r.nextDue):
			if _, ok := r.polled[l]; !ok {
				r.nextDue = l.due
			}
		}
	}
}

// rest stops the polling of a log until it is due or has an event.
func (r *Rotator) rest(l *logState) {
	delete(r.polled, l)
	if l.due.Before(r.nextDue) {
		r.nextDue = l.due
	}
}

// listContainers records which containers run, and reports whether that is known.
func (r *Rotator) listContainers(ctx context.Context) bool {
	var pods []runtime.Pod
	var changes uint64
	same := false
	err := safe.Call(r.cfg.Logger, "list pods", func() (err error) {
		if counter, ok := r.cfg.Runtime.(ChangeCounter); ok {
			changes = counter.Changes()
			same = r.listed > 0 && changes == r.changes
		}
		if !same {
			pods, err = r.cfg.Runtime.Pods(ctx)
		}
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			r.cfg.Logger.Warn("listing pods for log rotation failed", logattr.Err(err))
		}
		return false
	}
	if same {
		return true
	}
	r.listed++
	r.changes = changes
	for i := range pods {
		for j := range pods[i].Containers {
			if c := &pods[i].Containers[j]; c.State == runtime.Running {
				r.found(&pods[i], c)
			}
		}
	}
	return true
}

// found records that a container runs.
func (r *Rotator) found(pod *runtime.Pod, c *runtime.Container) {
	l := r.ids[c.ID]
	if l == nil {
		path, ok := logpath.Container(pod, c)
		if !ok {
			return
		}
		r.drop(r.logs[path])
		l = &logState{id: c.ID, path: path}
		r.ids[c.ID], r.logs[path], r.polled[l] = l, l, struct{}{}
		r.requestCleanup(path)
	}
	l.listed = r.listed
}

func (r *Rotator) drop(l *logState) {
	if l == nil {
		return
	}
	r.logWatch.forget(l)
	delete(r.polled, l)
	delete(r.logs, l.path)
	delete(r.ids, l.id)
}

// wake makes a log that is not polled due now.
func (r *Rotator) wake(l *logState) {
	if _, ok := r.polled[l]; !ok {
		r.polled[l] = struct{}{}
		l.pollNow()
	}
}

// pollLogs reads the sizes of the logs that are due, starts the rotation of those at
// MaxSize, and returns how long to wait for the next one.
func (r *Rotator) pollLogs(ctx context.Context, root logRoot, slots chan struct{}) time.Duration {
	if r.logWatch.drainEvents(r.wake) { // events were lost, and with them watches
		for _, l := range r.logs {
			r.logWatch.forget(l)
			r.wake(l)
		}
	}
	now := time.Now()
	next := now.Add(r.cfg.SizePollInterval)
	if len(r.polled) == 0 {
		if r.waits {
			return maxPollInterval
		}
		return r.cfg.SizePollInterval
	}
	free := r.freeBytes(r.cfg.LogsDir)
	for l := range r.polled {
		if l.isDue(now) || !l.missing && l.isDiskLow(r.cfg.MaxSize, free) {
			switch {
			case !r.mustWait(l, now):
				r.measure(ctx, root, l, slots, now, free)
			case l.missing && l.due.Sub(now) > r.cfg.MonitorInterval:
				r.rest(l) // a list finds it when it is due
			}
		}
		if l.due.Before(next) {
			next = l.due
		}
	}
	return max(next.Sub(now), minPollInterval)
}

// mustWait reports whether a log is being rotated, or has to wait after a failure. In
// that case it is due afterwards.
func (r *Rotator) mustWait(l *logState, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !l.busy && now.Before(l.retryAt) {
		l.due = l.retryAt
		return true
	}
	return l.busy
}

func (r *Rotator) measure(ctx context.Context, root logRoot, l *logState, slots chan struct{}, now time.Time, free uint64) {
	size, err := root.size(l.path)
	if errors.Is(err, errMissing) {
		r.findMissing(ctx, root, l, slots, now)
		return
	}
	if l.missing {
		l.missing, l.pollSchedule = false, pollSchedule{}
	}
	if err != nil {
		l.retry(now, r.cfg.SizePollInterval, r.cfg.MonitorInterval)
		r.cfg.Logger.Warn("checking container log failed", slog.String("path", l.path), logattr.Err(err))
		return
	}
	l.existed = true
	idle := l.update(size, now, free, bounds{full: r.cfg.MaxSize, watch: r.cfg.SizePollInterval, longest: r.cfg.MonitorInterval})
	switch {
	case size >= r.cfg.MaxSize:
		r.rotateLater(ctx, root, l, slots)
	case idle && l.watch != 0:
		r.restWatched(l, now) // it has been watched since the last read
	case idle && r.logWatch.watch(filepath.Join(r.cfg.LogsDir, l.path), l):
		// Check again for what was written before the watch was added.
		if current, _ := root.size(l.path); current == size { // if it has vanished, that is an event
			r.restWatched(l, now)
		}
	}
}

// findMissing has a log reopened that does not exist: at once if it was renamed, and if it was there
// before after MonitorInterval. By then a container that has ended, and whose log was removed with
// it, is not listed any more. What is left is a log that was deleted: the runtime still writes to it.
func (r *Rotator) findMissing(ctx context.Context, root logRoot, l *logState, slots chan struct{}, now time.Time) {
	if !l.missing {
		l.missing, l.since = true, now
	}
	longest, deleted := r.cfg.MonitorInterval, l.since.Add(r.cfg.MonitorInterval)
	if !l.existed {
		longest = maxPollInterval
	}
	l.retry(now, r.cfg.SizePollInterval, longest)
	switch {
	case l.existed && !now.Before(deleted) || root.needsReopen(l.path):
		r.reopenLater(ctx, root, l, slots)
	case l.existed && l.due.After(deleted):
		l.due = deleted
	case l.wait > r.cfg.MonitorInterval:
		r.rest(l) // a list finds it when it is due
	}
}

// restWatched stops the polling of a watched log until it has an event.
func (r *Rotator) restWatched(l *logState, now time.Time) {
	l.due = now.Add(maxPollInterval) // in case there is none, as on some file systems
	r.rest(l)
}

// start runs work on a log if a slot is free. Otherwise the log is due again soon.
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
	r.mu.Unlock()
	l.begin(minPollInterval)
	r.wg.Go(func() {
		err := safe.Call(r.cfg.Logger, "rotate log", work)
		<-slots
		r.mu.Lock()
		defer r.mu.Unlock()
		l.busy = false
		if err == nil {
			l.failures, l.retryAt = 0, time.Time{}
			return
		}
		l.failures++
		l.retryAt = time.Now().Add(min(time.Duration(l.failures*l.failures)*time.Second, retryMax))
	})
}

func (r *Rotator) rotateLater(ctx context.Context, root logRoot, l *logState, slots chan struct{}) {
	r.mu.Lock()
	isRetry := l.failures > 0
	r.mu.Unlock()
	level := slog.LevelDebug // the container may have ended, which a list tells before the retry
	if isRetry {
		level = slog.LevelWarn
		if r.list(ctx); r.ids[l.id] != l {
			return
		}
	}
	bytes, startTime := l.size, l.at
	r.start(l, slots, func() error {
		err := root.rotate(l.path, startTime, func() error { return r.reopen(ctx, l.id) })
		if err != nil {
			r.cfg.Logger.Log(ctx, level, "container log rotation failed", slog.String("path", l.path), logattr.Err(err))
		}
		if r.cfg.Hooks.Rotated != nil {
			r.cfg.Hooks.Rotated(l.id, bytes, time.Since(startTime), err)
		}
		r.requestCleanup(l.path)
		return err
	})
}

// reopenLater has the runtime create a log. It is a failure if it is still missing then.
func (r *Rotator) reopenLater(ctx context.Context, root logRoot, l *logState, slots chan struct{}) {
	r.start(l, slots, func() error {
		err := r.reopen(ctx, l.id)
		if err == nil {
			_, err = root.size(l.path)
		}
		if err != nil {
			r.cfg.Logger.Warn("reopening container log failed", slog.String("path", l.path), logattr.Err(err))
		}
		return err
	})
}

// reopen is not cancelled with ctx, because otherwise the runtime would keep writing to a
// renamed log.
func (r *Rotator) reopen(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	return r.cfg.Runtime.ReopenLog(ctx, id)
}
