package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// sinkQueue is the way to one sink: a queue of the pods that it has to hear of. The
// queue is guarded by Manager.mu; statuses stay in the manager, so that each is
// kept once and the newest wins.
type sinkQueue struct {
	m    *Manager
	n    int // index among the lanes
	sink Sink
	wake chan struct{} // one slot: there may be something to send

	items    map[types.UID]*queuedPod // pods that wait or are being sent
	ready    queue                    // by how long they wait; none of them has just failed
	again    queue                    // the same of those that failed when they were sent last
	delayed  queue                    // by when their back-off ends
	busy     int                      // sends under way
	retries  int                      // those of them of pods that failed when they were sent last
	failures int                      // sends in a row that failed, of any pod
	probe    time.Time                // when the last of those that found the sink down is tried again
	draining bool
}

func newLane(m *Manager, n int, sink Sink) *sinkQueue {
	return &sinkQueue{
		m: m, n: n, sink: sink,
		wake:    make(chan struct{}, 1),
		items:   make(map[types.UID]*queuedPod),
		ready:   queue{less: waitsLonger},
		again:   queue{less: waitsLonger},
		delayed: queue{less: func(a, b *queuedPod) bool { return a.due.Before(b.due) }},
	}
}

func waitsLonger(a, b *queuedPod) bool { return a.since.Before(b.since) }

// add has the pod sent. Manager.mu is held.
func (l *sinkQueue) add(uid types.UID) {
	it := l.items[uid]
	if it == nil {
		it = &queuedPod{uid: uid, since: time.Now()}
		l.items[uid] = it
		l.ready.push(it)
	}
	// A pod that waits already keeps its place; one that is being sent is
	// looked at when that send is done.
	l.signal()
}

func (l *sinkQueue) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run sends until ctx ends, and then for at most the flush time what is left.
func (l *sinkQueue) run(ctx context.Context) error {
	sendCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var wg sync.WaitGroup
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	done := ctx.Done()
	var end <-chan time.Time
	for {
		left, next := l.dispatch(sendCtx, &wg)
		if done == nil && left == 0 {
			break
		}
		timer.Reset(next)
		select {
		case <-l.wake:
		case <-timer.C:
		case <-done:
			done = nil
			flush := time.NewTimer(l.m.cfg.FlushTimeout)
			defer flush.Stop()
			end = flush.C
			l.retryNow()
		case <-end:
			cancel()
			return l.abandon(&wg)
		}
	}
	wg.Wait()
	return nil
}

// abandon waits a little for sends that were told to end.
func (l *sinkQueue) abandon(wg *sync.WaitGroup) error {
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	patience := time.NewTimer(time.Second)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C: // a sink that ignores its context must not hold us for ever
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if len(l.items) == 0 {
		return nil
	}
	return fmt.Errorf("status: %d statuses could not be told to %T", len(l.items), l.sink)
}

// retryNow makes the lane end: back-offs are cut short once.
func (l *sinkQueue) retryNow() {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.draining = true
	l.release()
}

// release ends all back-offs. Manager.mu is held.
func (l *sinkQueue) release() {
	for l.delayed.len() > 0 {
		l.again.push(l.delayed.pop())
	}
}

// dispatch starts as many sends as may run. It returns how many pods are left
// and when the next back-off ends.
func (l *sinkQueue) dispatch(ctx context.Context, wg *sync.WaitGroup) (left int, next time.Duration) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	now := time.Now()
	for l.delayed.len() > 0 && !l.delayed.first().due.After(now) {
		l.again.push(l.delayed.pop())
	}
	for it := l.next(); it != nil; it = l.next() {
		l.start(ctx, wg, it)
	}
	next = time.Hour
	if l.delayed.len() > 0 {
		next = l.delayed.first().due.Sub(now)
	}
	return len(l.items), next
}

// next takes the pod that is to be sent now, if there is one. While the sink answers
// nobody, probing it with one pod at a time is enough; a second may be one that has
// not failed itself, so that pods whose sends hang hold up no other.
func (l *sinkQueue) next() *queuedPod {
	from := &l.ready
	switch {
	case l.failures >= sinkDownThreshold && !l.draining:
		fresh, retry := l.ready.len() > 0 && l.busy == l.retries, l.again.len() > 0 && l.retries == 0
		if !fresh && !retry {
			return nil
		}
		if !fresh {
			from = &l.again
		}
	case l.busy >= l.m.cfg.MaxParallel || l.ready.len()+l.again.len() == 0:
		return nil
	case l.ready.len() == 0 || l.again.len() > 0 && waitsLonger(l.again.first(), l.ready.first()):
		from = &l.again
	}
	l.busy++
	it := from.pop()
	if it.failures > 0 {
		l.retries++
	}
	return it
}

// sinkDownThreshold is how many failures in a row make a sink count as down.
const sinkDownThreshold = 20

// start sends one pod in its own goroutine. Manager.mu is held.
func (l *sinkQueue) start(ctx context.Context, wg *sync.WaitGroup, it *queuedPod) {
	e := l.m.entries[it.uid]
	if e == nil {
		l.ended(it)
		delete(l.items, it.uid)
		return
	}
	job := delivery{
		entry: e, pod: e.pod, status: e.status, version: e.version,
		deletion: e.forgotten && !e.unfinished, lastSent: e.sent[l.n],
	}
	if job.lastSent.version < e.resendVersion {
		job.lastSent.status = nil
	}
	wg.Go(func() {
		began := time.Now()
		err := l.send(ctx, &job)
		if h := l.m.cfg.Hooks.Sent; h != nil && job.called {
			h(job.pod, time.Since(began), began.Sub(it.since), err)
		}
		l.log(&job, l.finish(&job, it, err), err)
	})
}

// delivery is one look at a pod: the values that it is sent with.
type delivery struct {
	entry    *entry
	pod      *corev1.Pod
	status   *corev1.PodStatus
	version  uint64
	lastSent sentStatus // by the sink's lane, before and then after
	deletion bool
	called   bool // the sink was, so that it may have heard
}

// isDelivered reports whether the sink was last told the same: the status changed and
// changed back meanwhile. Of two versions that follow one another it did not.
func (s *delivery) isDelivered(version uint64) bool {
	return s.lastSent.status != nil && s.lastSent.version+1 < version && equality.Semantic.DeepEqual(s.lastSent.status, s.status)
}

// send makes the call or, for a pod that is gone, those that are left of two:
// its last status, then its deletion. A panic is an error.
func (l *sinkQueue) send(ctx context.Context, job *delivery) (err error) {
	ctx, cancel := context.WithTimeout(ctx, l.m.cfg.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	last := job.version
	if job.deletion {
		last-- // the version before the deletion's is the last status
	}
	if job.lastSent.version < last {
		if err := l.deliver(ctx, job, last); err != nil {
			return err
		}
	}
	if !job.deletion {
		return nil
	}
	job.lastSent.status = nil
	if deleter, ok := l.sink.(Deleter); ok {
		job.called = true
		if err := deleter.DeleteStatus(ctx, job.pod); err != nil {
			return err
		}
	}
	job.lastSent.version = job.version
	return nil
}

// deliver sends the status, unless the sink holds the same.
func (l *sinkQueue) deliver(ctx context.Context, job *delivery, version uint64) error {
	if !job.isDelivered(version) {
		job.called, job.lastSent.status = true, nil
		if err := l.sink.SetStatus(ctx, job.pod, *job.status); err != nil {
			return err
		}
	}
	job.lastSent = sentStatus{version, job.status}
	return nil
}

// finish notes what a send came to and puts the pod where it belongs now. It
// returns how many sends to the sink have failed in a row.
func (l *sinkQueue) finish(job *delivery, it *queuedPod, err error) (failures int) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	defer l.signal()
	l.ended(it)
	job.entry.sent[l.n] = job.lastSent
	if err != nil {
		l.failures++
		it.failures++
		it.due = l.retry(it.failures, time.Now())
		l.delayed.push(it)
		return l.failures
	}
	if l.failures >= sinkDownThreshold {
		l.release() // it is back: everything that waits may go
		l.probe = time.Time{}
	}
	l.failures, it.failures = 0, 0
	e := l.m.entries[it.uid]
	if e != nil && (e != job.entry || e.version != job.version) {
		it.since = time.Now()
		l.ready.push(it)
		return 0
	}
	delete(l.items, it.uid)
	if e != nil && job.deletion {
		l.m.deletionDelivered(it.uid, e)
	}
	return 0
}

// ended notes that a send is not under way any more, before what came of it.
// Manager.mu is held.
func (l *sinkQueue) ended(it *queuedPod) {
	l.busy--
	if it.failures > 0 {
		l.retries--
	}
}

// log tells of a failure. Once the sink counts as down, one line says so for
// all pods.
func (l *sinkQueue) log(job *delivery, failures int, err error) {
	if err == nil || failures > sinkDownThreshold {
		return
	}
	logger := l.m.cfg.Logger.With(
		slog.String("pod", job.pod.Name), slog.String("namespace", job.pod.Namespace),
		slog.String("uid", string(job.pod.UID)), slog.Any("error", err))
	if p := new(panicError); errors.As(err, &p) {
		logger = logger.With(slog.String("stack", string(p.stack)))
	}
	if failures == sinkDownThreshold {
		logger.Warn("status sink is down, its failures are not logged until it is back")
		return
	}
	logger.Warn("status could not be told")
}

// panicError is a sink's panic.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("panic in status sink: %v", p.value) }

// retry returns when to try again after a pod's failures. A sink that is down is
// tried with one pod in MaxBackOff, however many wait; pods that have news and were
// not tried since go at once. Manager.mu is held.
func (l *sinkQueue) retry(fails int, now time.Time) time.Time {
	if l.failures < sinkDownThreshold || l.draining {
		return now.Add(l.backOff(fails))
	}
	if l.probe.Before(now) {
		l.probe = now
	}
	l.probe = l.probe.Add(l.m.cfg.MaxBackOff)
	return l.probe
}

// backOff doubles with each failure.
func (l *sinkQueue) backOff(fails int) time.Duration {
	d := l.m.cfg.BackOff
	for i := 1; i < fails && d < l.m.cfg.MaxBackOff; i++ {
		d *= 2
	}
	return min(d, l.m.cfg.MaxBackOff)
}
