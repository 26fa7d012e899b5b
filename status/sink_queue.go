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

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/priority"
)

// queuedPod is a pod to be sent to a sink. It is in one queue, or in none during
// the send.
type queuedPod struct {
	uid      types.UID
	since    time.Time // since when it waits to be sent
	due      time.Time // when its back-off, or its wait for a newer status, ends
	failures int       // in a row

	merging   *priority.Item[*queuedPod] // in sinkQueue.merging; nil: not there
	rejection rejection
}

// sinkQueue queues the pods to be sent to one sink. It is guarded by Manager.mu. The
// statuses stay in the manager, so that each is kept once and the newest is sent.
type sinkQueue struct {
	m       *Manager
	n       int // index in Manager.queues
	sink    Sink
	delayer Delayer       // the sink, if it is one
	keeps   bool          // the sink keeps pods until no source contains them
	wake    chan struct{} // one slot: there may be something to send

	items    map[types.UID]*queuedPod    // pods that wait or are being sent
	ready    *priority.Queue[*queuedPod] // by waiting time; none of them failed in its last send
	retrying *priority.Queue[*queuedPod] // by waiting time; all of them failed in their last send
	delayed  *priority.Queue[*queuedPod] // by the end of their back-off
	merging  *priority.Queue[*queuedPod] // wait for a newer status, by the end of that wait
	busy     int                         // sends in progress
	retries  int                         // of these, pods that failed in their last send
	failures int                         // consecutive failed sends, of any pod
	probe    time.Time                   // when the last pod that found the sink down is retried
	draining bool
}

func newSinkQueue(m *Manager, n int, sink Sink) *sinkQueue {
	delayer, _ := sink.(Delayer)
	retainer, ok := sink.(Retainer)
	return &sinkQueue{
		m: m, n: n, sink: sink, delayer: delayer, keeps: ok && retainer.RetainsDeleted(),
		wake:     make(chan struct{}, 1),
		items:    make(map[types.UID]*queuedPod),
		ready:    priority.New(waitsLonger),
		retrying: priority.New(waitsLonger),
		delayed:  priority.New(dueEarlier),
		merging:  priority.New(dueEarlier),
	}
}

// isDeleted reports whether the sink is to delete the pod. Manager.mu is held.
func (l *sinkQueue) isDeleted(e *entry) bool {
	return e.forgotten && !e.unfinished && (!l.keeps || !e.named)
}

func waitsLonger(a, b *queuedPod) bool { return a.since.Before(b.since) }

func dueEarlier(a, b *queuedPod) bool { return a.due.Before(b.due) }

// add queues the pod. Manager.mu is held.
func (l *sinkQueue) add(uid types.UID) {
	it := l.items[uid]
	switch {
	case it == nil:
		it = &queuedPod{uid: uid}
		l.items[uid] = it
		l.push(it)
	case it.merging != nil && l.delay(uid) == 0:
		l.endMerging(it)
	case it.rejection.delayed != nil && !l.isRejected(it):
		l.endRejection(it)
	}
	// A pod that waits already keeps its place. One that is being sent is checked
	// again at the end of the send.
	notify.Send(l.wake)
}

// run sends until ctx is done, and then the rest for at most FlushTimeout. What the sink rejects then is not waited for.
func (l *sinkQueue) run(ctx context.Context) error {
	sendCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var wg sync.WaitGroup
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	done := ctx.Done()
	var end <-chan time.Time
	for {
		flushed, next := l.dispatch(sendCtx, &wg)
		if flushed {
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
	return l.unsent()
}

// abandon waits up to 1s for the cancelled sends.
func (l *sinkQueue) abandon(wg *sync.WaitGroup) error {
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	timeout := time.NewTimer(time.Second)
	defer timeout.Stop()
	select {
	case <-ended:
	case <-timeout.C: // a sink that ignores its context must not block the stop
	}
	return l.unsent()
}

// unsent returns an error if statuses are left.
func (l *sinkQueue) unsent() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if len(l.items) == 0 {
		return nil
	}
	return fmt.Errorf("%d statuses not sent to %T", len(l.items), l.sink)
}

// retryNow begins the flush: it ends all back-offs once.
func (l *sinkQueue) retryNow() {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.draining = true
	l.release()
}

// release ends all back-offs. Manager.mu is held.
func (l *sinkQueue) release() {
	for l.delayed.Len() > 0 {
		l.endBackOff()
	}
}

// endBackOff ends the back-off that ends first. Manager.mu is held.
func (l *sinkQueue) endBackOff() {
	it := l.delayed.Pop()
	it.rejection.delayed = nil
	l.retrying.Push(it)
}

// dispatch starts as many sends as may run. It returns whether the flush has ended, and when the next wait ends.
func (l *sinkQueue) dispatch(ctx context.Context, wg *sync.WaitGroup) (flushed bool, next time.Duration) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	now := time.Now()
	for l.delayed.Len() > 0 && !l.delayed.First().due.After(now) {
		l.endBackOff()
	}
	for l.merging.Len() > 0 && (l.draining || !l.merging.First().due.After(now)) {
		l.endMerging(l.merging.First())
	}
	for it := l.next(); it != nil; it = l.next() {
		l.start(ctx, wg, it)
	}
	next = time.Hour
	for _, q := range []*priority.Queue[*queuedPod]{l.delayed, l.merging} {
		if q.Len() > 0 {
			next = min(next, q.First().due.Sub(now))
		}
	}
	return l.draining && l.isFlushed(), next
}

// isFlushed reports whether no pod is left but those whose statuses the sink rejects. Manager.mu is held.
func (l *sinkQueue) isFlushed() bool {
	if l.busy+l.ready.Len()+l.retrying.Len()+l.merging.Len() > 0 {
		return false
	}
	for _, it := range l.items {
		if it.rejection.delayed == nil {
			return false
		}
	}
	return true
}

// next removes the pod to be sent now from its queue, or returns nil. A sink that is
// down is probed with one pod at a time. A second pod may be sent if it has not
// failed itself, so that pods whose sends hang do not delay the others.
func (l *sinkQueue) next() *queuedPod {
	from := l.ready
	switch {
	case l.failures >= sinkDownThreshold && !l.draining:
		fresh, retry := l.ready.Len() > 0 && l.busy == l.retries, l.retrying.Len() > 0 && l.retries == 0
		if !fresh && !retry {
			return nil
		}
		if !fresh {
			from = l.retrying
		}
	case l.busy >= l.m.cfg.MaxParallel || l.ready.Len()+l.retrying.Len() == 0:
		return nil
	case l.ready.Len() == 0 || l.retrying.Len() > 0 && waitsLonger(l.retrying.First(), l.ready.First()):
		from = l.retrying
	}
	l.busy++
	it := from.Pop()
	if it.failures > 0 {
		l.retries++
	}
	return it
}

// sinkDownThreshold is the number of consecutive failures after which a sink counts
// as down.
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
		deletion: l.isDeleted(e), lastSent: e.sent[l.n],
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

// delivery is a snapshot of a pod for one send.
type delivery struct {
	entry    *entry
	pod      *corev1.Pod
	status   *corev1.PodStatus
	version  uint64
	lastSent sentStatus // to this sink, before and then after the send
	deletion bool
	called   bool // the sink was called, and may have the status
	quiet    bool // the failure is that of the previous send
}

// isDelivered reports whether the sink has the status already, because it changed and
// changed back. Two consecutive versions always differ.
func (s *delivery) isDelivered(version uint64) bool {
	return s.lastSent.status != nil && s.lastSent.version+1 < version && equality.Semantic.DeepEqual(s.lastSent.status, s.status)
}

// send calls the sink. For a deleted pod it makes the remaining ones of two calls: the
// last status, then the deletion. A panic is an error.
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
		last-- // the version before the deletion is the last status
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

// deliver sends the status, unless the sink has it already.
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

// finish records the result of a send and moves the pod to its next queue. It
// returns the number of consecutive failed sends to the sink.
func (l *sinkQueue) finish(job *delivery, it *queuedPod, err error) (failures int) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	defer notify.Send(l.wake)
	l.ended(it)
	job.entry.sent[l.n] = job.lastSent
	if errors.Is(err, ErrRejected) {
		l.answered()
		l.handleRejection(job, it, err)
		return 0
	}
	if err != nil {
		l.failures++
		it.failures++
		it.due = l.retry(it.failures, time.Now())
		l.delayed.Push(it)
		return l.failures
	}
	l.answered()
	it.failures, it.rejection = 0, rejection{}
	e := l.m.entries[it.uid]
	if e != nil && (e != job.entry || e.version != job.version || l.isDeleted(e) != job.deletion) {
		l.push(it)
		return 0
	}
	delete(l.items, it.uid)
	if e != nil && job.deletion {
		l.m.deletionDelivered(it.uid, e)
	}
	return 0
}

// ended counts the end of a send, before its result is recorded. Manager.mu is held.
func (l *sinkQueue) ended(it *queuedPod) {
	l.busy--
	if it.failures > 0 {
		l.retries--
	}
}

// log logs a failure. When the sink counts as down, one record is for all pods.
func (l *sinkQueue) log(job *delivery, failures int, err error) {
	if err == nil || job.quiet || failures > sinkDownThreshold {
		return
	}
	logger := l.m.cfg.Logger.With(
		logattr.Pod(job.pod), logattr.PodUID(job.pod.UID), logattr.Err(err))
	if p := new(panicError); errors.As(err, &p) {
		logger = logger.With(slog.String("stack", string(p.stack)))
	}
	if failures == sinkDownThreshold {
		logger.Warn("status sink is down, suppressing its failures until it recovers")
		return
	}
	logger.Warn("sending pod status failed")
}

// panicError is a panic of a sink.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("panic in status sink: %v", p.value) }

// retry returns when to retry a pod after that many failures. A sink that is down is
// tried with one pod per MaxBackOff, regardless of how many wait. Pods that changed
// and were not tried since are sent immediately. Manager.mu is held.
func (l *sinkQueue) retry(fails int, now time.Time) time.Time {
	if l.failures < sinkDownThreshold || l.draining {
		return now.Add(l.backOff(fails, l.m.cfg.MaxBackOff))
	}
	if l.probe.Before(now) {
		l.probe = now
	}
	l.probe = l.probe.Add(l.m.cfg.MaxBackOff)
	return l.probe
}

// backOff doubles with each failure, up to limit.
func (l *sinkQueue) backOff(fails int, limit time.Duration) time.Duration {
	d := l.m.cfg.BackOff
	for i := 1; i < fails && d < limit; i++ {
		d *= 2
	}
	return min(d, limit)
}
