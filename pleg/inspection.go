package pleg

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// podRecord is what a Generator keeps of one pod.
type podRecord struct {
	uid         types.UID
	observed    runtime.Pod  // of the last good inspection; empty for an absent pod
	observedAt  time.Time    // view holds all that happened before; zero: there is none
	requestedAt time.Time    // of the newest Touch that view is the answer to
	fingerprint uint64       // of view
	relistSeq   uint64       // of the last listing with the pod in it
	flapping    flapDetector // a listing that contradicts the inspections

	current *inspection // the inspection under way
	next    *inspection // the one to follow, asked for after cur began
	last    uint64      // sequence number of the newest inspection that began

	began time.Time // when it did

	deferredSeq   uint64 // sequence number of the newest hint held back; 0: none
	deferTimer    *time.Timer
	eventReceived bool   // the event stream told of it since the last inspection began
	listed        uint64 // print of the listing that differs from view; 0: none does

	failures int // inspections that failed in a row
	err      error
	since    time.Time // when the first of them, or a stuck one, began
	stuck    bool      // the last inspection took longer than it may
	retry    *time.Timer
}

func (r *podRecord) stopTimers() {
	for _, t := range []*time.Timer{r.deferTimer, r.retry} {
		if t != nil {
			t.Stop()
		}
	}
	r.deferTimer, r.retry = nil, nil
}

// idle reports that nothing is known or wanted of the pod beyond its view.
func (r *podRecord) idle() bool {
	return r.current == nil && r.next == nil && r.deferredSeq == 0 && r.failures == 0
}

func empty(p *runtime.Pod) bool { return len(p.Sandboxes)+len(p.Containers) == 0 }

// inspection is one inspection, shared by all who can use its result.
type inspection struct {
	r           *podRecord
	requestedAt time.Time
	newerThan   time.Time // the newest time that an asker wants it to be newer than
	touch       time.Time // of the newest Touch that asked for it
	urgent      bool      // someone waits for it
	hinted      bool      // the event stream asked for it
	listed      uint64    // print of the listing that asked for it; 0: none did

	seq          uint64 // 0: it has not begun
	began        time.Time
	slotReleased bool // its slot was given back early
	lane         *inspectQueue

	done chan struct{} // closed once pod and err are set
	pod  runtime.Pod
	err  error
}

// inspectQueue is a queue of inspections and the slots that they need.
type inspectQueue struct {
	free           int
	urgent, normal []*inspection
}

// pop takes the next inspection that has not begun, or nil. An inspection may
// stand in both queues.
func (l *inspectQueue) pop() *inspection {
	for _, q := range []*[]*inspection{&l.urgent, &l.normal} {
		for len(*q) > 0 {
			first := (*q)[0]
			(*q)[0] = nil
			*q = (*q)[1:]
			if first.seq == 0 && first.r.next == first {
				return first
			}
		}
	}
	return nil
}

// record returns the record of a pod, made anew where there is none. A pod that
// was in no listing was absent then. The caller holds mu.
func (g *Generator) record(uid types.UID) *podRecord {
	r := g.pods[uid]
	if r == nil {
		r = &podRecord{uid: uid, observed: runtime.Pod{UID: uid, ObservedAt: g.health.listed}, observedAt: g.health.listed}
		g.pods[uid] = r
	}
	return r
}

// requestInspection asks for an inspection of r that has not begun yet. The caller holds mu.
func (g *Generator) requestInspection(r *podRecord, after time.Time, urgent bool) *inspection {
	l := r.next
	if l == nil {
		l = &inspection{r: r, requestedAt: time.Now(), done: make(chan struct{})}
		r.next = l
		l.urgent = urgent
		g.enqueue(l)
	} else if urgent && !l.urgent {
		l.urgent = true
		g.enqueue(l)
	}
	if after.After(l.newerThan) {
		l.newerThan = after
	}
	g.dispatch()
	return l
}

// enqueue puts l in line, unless the pod's present inspection must end first.
func (g *Generator) enqueue(l *inspection) {
	if l.r.current != nil {
		return
	}
	l.lane = &g.queue
	if l.r.stuck {
		l.lane = &g.slowQueue
	}
	if l.urgent {
		l.lane.urgent = append(l.lane.urgent, l)
	} else {
		l.lane.normal = append(l.lane.normal, l)
	}
}

// dispatch begins as many inspections as there are slots. The caller holds mu.
func (g *Generator) dispatch() {
	if g.ctx == nil || !g.open || g.stopped {
		return
	}
	for _, lane := range []*inspectQueue{&g.queue, &g.slowQueue} {
		for lane.free > 0 {
			l := lane.pop()
			if l == nil {
				break
			}
			lane.free--
			g.seq++
			l.seq, l.began = g.seq, time.Now()
			l.r.begin(l)
			g.wg.Go(func() { g.inspect(l) })
		}
	}
}

// begin makes l the inspection of r that is under way.
func (r *podRecord) begin(l *inspection) {
	r.current, r.next, r.last, r.began = l, nil, l.seq, l.began
	l.hinted, r.eventReceived = r.eventReceived, false
	l.listed, r.listed = r.listed, 0
}

// inspect looks at one pod and makes the result known.
func (g *Generator) inspect(l *inspection) {
	uid := l.r.uid
	ctx, cancel := context.WithTimeout(g.ctx, g.cfg.Timeout)
	stuck := time.AfterFunc(g.cfg.SlowInspectionThreshold, func() { g.markSlow(l) })
	var pod runtime.Pod
	err := safe.Call(g.cfg.Logger, "inspect pod", func() (err error) { pod, err = g.cfg.Runtime.Pod(ctx, uid); return err })
	stuck.Stop()
	cancel()
	took := time.Since(l.began)

	switch {
	case err == nil:
		pod.UID, pod.ObservedAt = uid, l.began
		if pod.Name == "" { // a pod that is gone keeps its name for those who tell of it
			pod.Namespace, pod.Name = l.r.observed.Namespace, l.r.observed.Name
		}
		l.pod = pod
		g.store(uid, pod, nil, l.began)
	case g.ctx.Err() != nil:
		l.err = ErrStopped
	default:
		l.err = fmt.Errorf("inspect pod %s: %w", uid, err)
		g.store(uid, runtime.Pod{}, l.err, l.began)
		g.cfg.Logger.Warn("pod cannot be inspected", slog.String("uid", string(uid)), slog.Any("err", err))
	}
	g.finish(l)
	close(l.done)
	if h := g.cfg.Hooks.Inspected; h != nil {
		h(uid, l.began.Sub(l.requestedAt), took, err)
	}
}

func (g *Generator) store(uid types.UID, pod runtime.Pod, err error, at time.Time) {
	safe.Do(g.cfg.Logger, "store pod", func() { g.cfg.Cache.Set(uid, pod, err, at) })
}

// finish takes the result of l into account and goes on to what waits for it.
func (g *Generator) finish(l *inspection) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := l.r
	r.current = nil
	if !l.slotReleased {
		l.lane.free++
		r.stuck = false
	}
	l.slotReleased = true // whatever stuck timer still runs comes too late
	if l.err == nil {
		g.succeed(r, l)
	} else if !g.stopped {
		g.fail(r, l)
	}
	if r.next != nil {
		g.enqueue(r.next)
	}
	g.dispatch()
}

func (g *Generator) succeed(r *podRecord, l *inspection) {
	events := diff(r.observed, l.pod)
	switch {
	case len(events) > 0:
	case r.failures > 0:
		events = []Event{{Type: PodSync, UID: r.uid}}
	case l.hinted && empty(&r.observed) && empty(&l.pod):
		// Something of this pod came and went since the last look.
		events = []Event{{Type: ContainerRemoved, UID: r.uid}}
	}
	g.publish(r.observed, l.pod, events)
	former := r.fingerprint
	r.observed, r.observedAt, r.requestedAt, r.fingerprint = l.pod, l.began, l.touch, g.fingerprint(&l.pod)
	r.flapping.observe(l.listed, former, r.fingerprint, time.Now())
	r.failures, r.err, r.since = 0, nil, time.Time{}
	if r.retry != nil {
		r.retry.Stop()
		r.retry = nil
	}
}

// fail has r looked at again, sooner at first and later more rarely.
func (g *Generator) fail(r *podRecord, l *inspection) {
	if r.since.IsZero() {
		r.since = l.began
	}
	r.err = l.err
	wait := g.cfg.RelistPeriod / 2 << min(r.failures, 5)
	r.failures++
	if r.retry != nil {
		r.retry.Stop()
	}
	r.retry = time.AfterFunc(wait, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.stopped && r.failures > 0 {
			g.requestInspection(r, time.Time{}, false)
		}
	})
}

// markSlow lets others use the slot of an inspection that takes too long, and has
// the pod wait among its like from now on. The whole runtime may hang as well:
// a listing finds out.
func (g *Generator) markSlow(l *inspection) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.slotReleased || g.stopped {
		return
	}
	l.slotReleased, l.r.stuck = true, true
	if l.r.since.IsZero() {
		l.r.since = l.began
	}
	l.lane.free++
	g.dispatch()
	g.RequestRelist()
}
