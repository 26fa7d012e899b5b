package pleg

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// podRecord is the Generator's state of one pod.
type podRecord struct {
	uid         types.UID
	observed    runtime.Pod  // result of the last successful inspection; empty for an absent pod
	observedAt  time.Time    // observed reflects all changes before it; zero: never observed
	requestedAt time.Time    // of the newest RequestInspection that observed answers
	fingerprint uint64       // of observed
	relistSeq   uint64       // of the last relist that contained the pod
	flapping    flapDetector // relists that contradict the inspections

	current *inspection // the inspection under way
	next    *inspection // the one after it

	lastSeq       uint64    // sequence number of the last deferred change before the newest inspection began
	lastStartTime time.Time // when it began

	deferredSeq       uint64 // sequence number of the newest deferred change; 0: none
	deferTimer        *time.Timer
	eventReceived     bool       // a runtime event arrived since the last inspection began
	listedFingerprint uint64     // of the relist that differs from observed; 0: none does
	listed            *listedPod // by that relist, if it lacks nothing that was observed; until the deferral ends

	failures     int // consecutive failed inspections
	err          error
	failingSince time.Time // start of the first of them, or of a slow one
	slow         bool      // the last inspection exceeded SlowInspectionThreshold
	retryTimer   *time.Timer

	initWait *initWait // nil: no init container is waited for
}

func (r *podRecord) stopTimers() {
	for _, t := range []*time.Timer{r.deferTimer, r.retryTimer} {
		if t != nil {
			t.Stop()
		}
	}
	r.deferTimer, r.retryTimer = nil, nil
}

// isIdle reports whether no inspection is under way, requested or deferred.
func (r *podRecord) isIdle() bool {
	return r.current == nil && r.next == nil && r.deferredSeq == 0 && r.failures == 0
}

// inspection is one inspection of a pod, shared by all callers that can use its
// result.
type inspection struct {
	r                 *podRecord
	queuedAt          time.Time
	newerThan         time.Time // the newest time that a caller needs the result to be newer than
	requestedAt       time.Time // of the newest RequestInspection
	urgent            bool      // a caller waits for the result
	eventReceived     bool      // a runtime event caused it
	listedFingerprint uint64    // of the relist that caused it; 0: none did
	listed            *listedPod

	seq          uint64    // sequence number of the last deferred change before it began
	startTime    time.Time // the result reflects all changes before it
	begunAt      time.Time
	slotReleased bool // its slot was given back early, or it has ended
	queue        *inspectQueue

	done chan struct{} // closed when pod and err are set
	pod  runtime.Pod
	err  error
}

// listedPod is a pod as a relist found it, from which an inspection can go on.
type listedPod struct {
	pod runtime.Pod
	at  time.Time // when the relist began
}

// inspectQueue is a queue of inspections and the slots to run them.
type inspectQueue struct {
	free           int
	urgent, normal []*inspection
}

// pop removes the next inspection that has not begun. It returns nil if there is
// none. An inspection that became urgent is in both queues.
func (q *inspectQueue) pop() *inspection {
	for _, queued := range []*[]*inspection{&q.urgent, &q.normal} {
		for len(*queued) > 0 {
			first := (*queued)[0]
			(*queued)[0] = nil
			*queued = (*queued)[1:]
			if first.r.next == first {
				return first
			}
		}
	}
	return nil
}

// record returns the record of a pod and creates it if necessary. A pod without a
// record was absent at the last relist. The caller holds mu.
func (g *Generator) record(uid types.UID) *podRecord {
	r := g.pods[uid]
	if r == nil {
		r = &podRecord{uid: uid, observed: runtime.Pod{UID: uid, ObservedAt: g.health.listed}, observedAt: g.health.listed}
		g.pods[uid] = r
	}
	return r
}

// requestInspection returns the next inspection of r, which has not begun yet, and
// queues it if necessary. The caller holds mu.
func (g *Generator) requestInspection(r *podRecord, newerThan time.Time, urgent bool) *inspection {
	in := r.next
	if in == nil {
		in = g.newInspection(r)
		in.urgent = urgent
		g.enqueue(in)
	} else if urgent && !in.urgent {
		in.urgent = true
		g.enqueue(in)
	}
	if newerThan.After(in.newerThan) {
		in.newerThan = newerThan
	}
	g.dispatch()
	return in
}

// newInspection returns the next inspection of r, which has none yet. The caller
// queues it, and holds mu.
func (*Generator) newInspection(r *podRecord) *inspection {
	r.next = &inspection{r: r, queuedAt: time.Now(), done: make(chan struct{})}
	return r.next
}

// isSyncing reports whether a worker syncs the pod. The caller holds mu.
func (g *Generator) isSyncing(uid types.UID) bool {
	_, syncing := g.syncing[uid]
	return syncing
}

// enqueue adds in to a queue, unless the inspection under way must end first.
func (g *Generator) enqueue(in *inspection) {
	if in.r.current != nil {
		return
	}
	in.queue = &g.queue
	if in.r.slow {
		in.queue = &g.slowQueue
	}
	if in.urgent {
		in.queue.urgent = append(in.queue.urgent, in)
	} else {
		in.queue.normal = append(in.queue.normal, in)
	}
}

// dispatch starts as many inspections as there are free slots. The caller holds
// mu.
func (g *Generator) dispatch() {
	if !g.started || g.stopped {
		return
	}
	for _, q := range []*inspectQueue{&g.queue, &g.slowQueue} {
		for q.free > 0 {
			in := q.pop()
			if in == nil {
				break
			}
			q.free--
			in.seq, in.begunAt = g.seq, time.Now()
			in.startTime = in.begunAt
			if in.canUseList() {
				in.startTime = in.listed.at
			} else {
				in.listed = nil
			}
			in.r.begin(in)
			g.wg.Go(func() { g.inspect(in) })
		}
	}
}

// canUseList reports whether the list is new enough for everybody who waits for the
// inspection, and nothing has happened to the pod since.
func (in *inspection) canUseList() bool {
	return in.listed != nil && in.newerThan.Before(in.listed.at) && in.requestedAt.IsZero() && !in.r.eventReceived && in.r.deferredSeq == 0 &&
		in.listed.at.After(in.r.lastStartTime)
}

// begin makes in the current inspection of r.
func (r *podRecord) begin(in *inspection) {
	r.current, r.next, r.lastSeq, r.lastStartTime = in, nil, in.seq, in.startTime
	in.eventReceived, r.eventReceived = r.eventReceived, false
	in.listedFingerprint, r.listedFingerprint = r.listedFingerprint, 0
}

// inspect queries the runtime for one pod and publishes the result.
func (g *Generator) inspect(in *inspection) {
	uid := in.r.uid
	ctx, cancel := context.WithTimeout(g.ctx, g.cfg.Timeout)
	slowTimer := time.AfterFunc(g.cfg.SlowInspectionThreshold, func() { g.markSlow(in) })
	var pod runtime.Pod
	err := safe.Call(g.cfg.Logger, "inspect pod", func() (err error) {
		if in.listed != nil {
			pod, err = g.listedInspector.InspectListedPod(ctx, in.listed.pod)
		} else {
			pod, err = g.cfg.Runtime.Pod(ctx, uid)
		}
		return err
	})
	slowTimer.Stop()
	cancel()
	duration := time.Since(in.begunAt)

	switch {
	case err == nil:
		pod.UID, pod.ObservedAt = uid, in.startTime
		if pod.Name == "" { // events of a removed pod still need its name
			pod.Namespace, pod.Name = in.r.observed.Namespace, in.r.observed.Name
		}
		in.pod = pod
		g.store(uid, pod, nil, in.startTime)
	case g.ctx.Err() != nil:
		in.err = ErrStopped
	default:
		in.err = fmt.Errorf("inspect pod %s: %w", uid, err)
		g.store(uid, runtime.Pod{}, in.err, in.startTime)
		g.cfg.Logger.Warn("pod inspection failed", logattr.PodUID(uid), logattr.Err(err))
	}
	absent := g.finish(in)
	close(in.done)
	g.delete(absent)
	if h := g.cfg.Hooks.Inspected; h != nil {
		h(uid, in.begunAt.Sub(in.queuedAt), duration, err)
	}
}

func (g *Generator) store(uid types.UID, pod runtime.Pod, err error, at time.Time) {
	safe.Do(g.cfg.Logger, "store pod", func() { g.cfg.Cache.Set(uid, pod, err, at) })
}

// finish records the result of in and starts the inspections that waited for it. It
// returns the pods that are to be deleted now.
func (g *Generator) finish(in *inspection) (absent []*podRecord) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := in.r
	r.current = nil
	if !in.slotReleased {
		in.queue.free++
		r.slow = false
	}
	in.slotReleased = true // a slow timer that still runs has no effect
	if in.err == nil {
		g.succeed(r, in)
	} else if !g.stopped {
		g.fail(r, in)
	}
	if r.next != nil {
		g.enqueue(r.next)
	}
	g.dispatch()
	return g.takeAbsent(time.Now())
}

func (g *Generator) succeed(r *podRecord, in *inspection) {
	events := difference(r.observed, in.pod)
	switch {
	case len(events) > 0:
	case r.failures > 0:
		events = []Event{{Type: PodSync, UID: r.uid}}
	case in.eventReceived && r.observed.IsEmpty():
		// The pod was and is empty: one of its containers was created and removed
		// between two inspections.
		events = []Event{{Type: ContainerRemoved, UID: r.uid}}
	}
	g.publish(r.observed, in.pod, events)
	previous := r.fingerprint
	r.observed, r.observedAt, r.requestedAt, r.fingerprint = in.pod, in.startTime, in.requestedAt, g.fingerprint(&in.pod)
	r.flapping.observe(in.listedFingerprint, previous, r.fingerprint, time.Now())
	r.failures, r.err, r.failingSince = 0, nil, time.Time{}
	if r.retryTimer != nil {
		r.retryTimer.Stop()
		r.retryTimer = nil
	}
	if r.observed.IsEmpty() {
		g.absent = append(g.absent, absentPod{r, r.observedAt})
	}
	g.inspectInit(r)
}

// fail schedules another inspection of r, with exponential back-off.
func (g *Generator) fail(r *podRecord, in *inspection) {
	if r.failingSince.IsZero() {
		r.failingSince = in.startTime
	}
	r.err = in.err
	backOff := g.cfg.RelistPeriod / 2 << min(r.failures, 5)
	r.failures++
	if r.retryTimer != nil {
		r.retryTimer.Stop()
	}
	r.retryTimer = time.AfterFunc(backOff, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.stopped && r.failures > 0 {
			g.requestInspection(r, time.Time{}, false)
		}
	})
}

// markSlow gives back the slot of a slow inspection and moves the pod's next
// inspections to the slow queue. It requests a relist, which shows whether the
// whole runtime is slow.
func (g *Generator) markSlow(in *inspection) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if in.slotReleased {
		return
	}
	in.slotReleased, in.r.slow = true, true
	if in.r.failingSince.IsZero() {
		in.r.failingSince = in.startTime
	}
	in.queue.free++
	g.dispatch()
	g.RequestRelist()
}
