package nodeshutdown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/podspec"
)

// What a kubelet reports of a node that shuts down.
const (
	// ReasonRejected is the status reason of pods that are rejected during a shutdown.
	ReasonRejected = "NodeShutdown"

	messageRejected  = "Pod was rejected as the node is shutting down."
	eventReason      = "NodeShutdown"
	messageDetected  = "Shutdown manager detected shutdown event"
	messageCancelled = "Shutdown manager detected shutdown cancellation"
)

// ErrShuttingDown is returned by Check during a shutdown.
var ErrShuttingDown = errors.New("node is shutting down")

// Waits between two connections.
const (
	minRetryPeriod = time.Second
	maxRetryPeriod = 30 * time.Second
	// maxShortPeriod is the longest wait before a longer lock is tried to be got. Meanwhile a shutdown is noticed late.
	maxShortPeriod = time.Hour
)

// Manager handles the shutdown of a node. Its methods can be called from any goroutine.
type Manager struct {
	cfg       Config        // without the groups
	changedCh chan struct{} // the groups are others

	mu           sync.Mutex // guards all below
	groups       []Group    // sorted
	shuttingDown bool
}

// New returns a Manager. It does no I/O.
func New(cfg Config) (*Manager, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{cfg: cfg, groups: sorted(cfg.Groups), changedCh: make(chan struct{}, 1)}, nil
}

// SetGroups replaces Config.Groups for shutdowns that begin from now on. Invalid groups change nothing.
func (m *Manager) SetGroups(groups []Group) error {
	if err := checkSomeGroups(groups); err != nil {
		return err
	}
	m.mu.Lock()
	m.groups = sorted(groups)
	m.mu.Unlock()
	notify.Send(m.changedCh) // for a lock of the new period
	return nil
}

// currentGroups returns the groups, and how long a shutdown is delayed for them at most.
func (m *Manager) currentGroups() ([]Group, time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groups, Total(m.groups) + killTime
}

// Admit implements syncloop.Admitter: it rejects every pod while the node shuts down.
func (m *Manager) Admit(*corev1.Pod, []*corev1.Pod) podspec.AdmitResult {
	if m.Check() != nil {
		return podspec.Rejected(ReasonRejected, messageRejected)
	}
	return podspec.Admitted()
}

// Check is a node.Check: it returns ErrShuttingDown while the node shuts down.
func (m *Manager) Check() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shuttingDown {
		return ErrShuttingDown
	}
	return nil
}

// Runner returns what waits for shutdowns and terminates pods. Runners of one Manager must not run at the same time. recorder
// may be nil.
func (m *Manager) Runner(pods Pods, recorder Recorder) *Runner {
	return &Runner{m: m, pods: pods, recorder: recorder}
}

// Runner waits for shutdowns of the node.
type Runner struct {
	m        *Manager
	pods     Pods
	recorder Recorder

	// All below are owned by Run's goroutine.
	isShort   bool          // the lock is shorter than the periods
	longerIn  time.Duration // when a longer one is tried to be got
	getLonger *time.Timer
}

// Run handles shutdowns until ctx is done. A connection that fails is made again: without it, a shutdown goes unnoticed and
// pods are killed by the machine, which the log says once.
func (r *Runner) Run(ctx context.Context) error {
	r.reportPrevious()
	wait, failed := minRetryPeriod, false
	for {
		begun := time.Now()
		err := r.watch(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // a clean stop
		}
		if time.Since(begun) > maxRetryPeriod {
			wait, failed = minRetryPeriod, false
		}
		if !failed {
			r.m.cfg.Logger.Warn("shutdown notification unavailable, retrying", logattr.Err(err))
		}
		failed = true
		if sleep.For(ctx, wait) != nil {
			return nil //nolint:nilerr // the same
		}
		wait = min(2*wait, maxRetryPeriod)
	}
}

// errConnectionLost is the reason for a new connection.
var errConnectionLost = errors.New("connection to the login manager lost")

// watch handles shutdowns with one connection until it fails or ctx is done.
func (r *Runner) watch(ctx context.Context) error {
	login, err := r.m.cfg.Dial(ctx)
	if err != nil {
		return fmt.Errorf("connect to the login manager: %w", err)
	}
	defer func() { _ = login.Close() }() // nothing was written
	var lock io.Closer
	defer func() { r.release(lock) }()
	r.longerIn, r.getLonger = maxRetryPeriod, time.NewTimer(maxRetryPeriod)
	defer r.getLonger.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.m.changedCh:
			lock = r.renew(ctx, login, lock)
		case <-r.getLonger.C:
			if r.isShort {
				lock = r.renew(ctx, login, lock)
			}
		case down, ok := <-login.Shutdowns():
			if !ok {
				return errConnectionLost
			}
			for down && ok { // until it is cancelled
				down, ok = r.shutDown(ctx, login.Shutdowns(), lock)
				lock = nil
			}
			if !ok {
				return errConnectionLost
			}
			if ctx.Err() != nil {
				return nil
			}
			r.set(false, messageCancelled)
			if lock == nil {
				if lock, err = r.inhibit(ctx, login); err != nil {
					return err
				}
			}
		}
	}
}

// inhibit takes a lock for the periods of all groups. One that is shorter is better than none: pods are terminated and reported
// in the time that there is.
func (r *Runner) inhibit(ctx context.Context, login Login) (io.Closer, error) {
	select {
	case <-r.m.changedCh: // this lock has the new period
	default:
	}
	_, period := r.m.currentGroups()
	lock, err := login.Inhibit(ctx, period)
	if err != nil && lock == nil {
		return nil, fmt.Errorf("delay shutdowns: %w", err)
	}
	was := r.isShort
	r.isShort = err != nil
	switch {
	case !r.isShort:
		r.m.cfg.Logger.Info("shutdowns of the node are delayed until pods have terminated", slog.Duration("period", period))
		return lock, nil
	case !was:
		r.m.cfg.Logger.Warn("shutdowns of the node are not delayed as long as pods may need", slog.Duration("period", period), logattr.Err(err))
	}
	r.getLonger.Reset(r.longerIn)
	r.longerIn = min(2*r.longerIn, maxShortPeriod)
	return lock, nil
}

// renew replaces a lock, if there is one, by one for the groups of now. Without success, as
// when a shutdown has just begun, the old one stays.
func (r *Runner) renew(ctx context.Context, login Login, lock io.Closer) io.Closer {
	if lock == nil {
		return nil
	}
	next, err := r.inhibit(ctx, login)
	if err != nil {
		r.m.cfg.Logger.Warn("shutdown lock not renewed, its period stays", logattr.Err(err))
		return lock
	}
	r.release(lock)
	return next
}

func (r *Runner) release(lock io.Closer) {
	if lock == nil {
		return
	}
	if err := lock.Close(); err != nil {
		r.m.cfg.Logger.Warn("releasing the shutdown lock failed", logattr.Err(err))
	}
}

// shutDown terminates the pods, releases the lock, and waits for the end of the process or of the shutdown. It returns the
// next value of changes. While no more values can come, because the connection is lost, pods are terminated all the same.
func (r *Runner) shutDown(ctx context.Context, changes <-chan bool, lock io.Closer) (down, ok bool) {
	r.set(true, messageDetected)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.release(lock)
		_ = safe.Call(r.m.cfg.Logger, "terminate pods of a node that shuts down", func() error { r.terminatePods(ctx); return nil })
	}()
	defer func() { <-done }()
	for {
		select {
		case down, ok = <-changes:
			switch {
			case !ok:
				<-done
				return true, false
			case !down:
				cancel()
				<-done
				r.forget()
				return false, true
			}
		case <-ctx.Done():
			return false, true // the caller sees it too
		}
	}
}

// set records whether the node shuts down.
func (r *Runner) set(shuttingDown bool, message string) {
	r.m.mu.Lock()
	changed := r.m.shuttingDown != shuttingDown
	r.m.shuttingDown = shuttingDown
	r.m.mu.Unlock()
	if !changed {
		return
	}
	r.m.cfg.Logger.Info("node shutdown changed", slog.Bool("shuttingDown", shuttingDown))
	if r.recorder != nil && r.m.cfg.NodeName != "" {
		event := podspec.NewNodeEvent(r.m.cfg.NodeName, corev1.EventTypeNormal, eventReason, message, time.Now())
		safe.Do(r.m.cfg.Logger, "record node shutdown", func() { r.recorder.Record(event) })
	}
}
