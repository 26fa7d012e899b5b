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

// record is what a Generator keeps of one pod.
type record struct {
	uid   types.UID
	view  runtime.Pod // of the last good inspection; empty for an absent pod
	seen  time.Time   // view holds all that happened before; zero: there is none
	touch time.Time   // of the newest Touch that view is the answer to
	print uint64      // of view
	round uint64      // of the last listing with the pod in it
	stray stray       // a listing that contradicts the inspections

	cur  *look  // the inspection under way
	next *look  // the one to follow, asked for after cur began
	last uint64 // sequence number of the newest inspection that began

	began time.Time // when it did

	held   uint64 // sequence number of the newest hint held back; 0: none
	hold   *time.Timer
	hinted bool   // the event stream told of it since the last inspection began
	listed uint64 // print of the listing that differs from view; 0: none does

	fails int // inspections that failed in a row
	fault error
	since time.Time // when the first of them, or a stuck one, began
	stuck bool      // the last inspection took longer than it may
	retry *time.Timer
}

func (r *record) stopTimers() {
	for _, t := range []*time.Timer{r.hold, r.retry} {
		if t != nil {
			t.Stop()
		}
	}
	r.hold, r.retry = nil, nil
}

// idle reports that nothing is known or wanted of the pod beyond its view.
func (r *record) idle() bool {
	return r.cur == nil && r.next == nil && r.held == 0 && r.fails == 0
}

func empty(p *runtime.Pod) bool { return len(p.Sandboxes)+len(p.Containers) == 0 }

// look is one inspection, shared by all who can use its result.
type look struct {
	r      *record
	asked  time.Time
	after  time.Time // the newest time that an asker wants it to be newer than
	touch  time.Time // of the newest Touch that asked for it
	urgent bool      // someone waits for it
	hinted bool      // the event stream asked for it
	listed uint64    // print of the listing that asked for it; 0: none did

	seq   uint64 // 0: it has not begun
	began time.Time
	freed bool // its slot was given back early
	lane  *lane

	done chan struct{} // closed once pod and err are set
	pod  runtime.Pod
	err  error
}

// lane is a queue of inspections and the slots that they need.
type lane struct {
	free           int
	urgent, normal []*look
}

// pop takes the next inspection that has not begun, or nil. An inspection may
// stand in both queues.
func (l *lane) pop() *look {
	for _, q := range []*[]*look{&l.urgent, &l.normal} {
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
func (g *Generator) record(uid types.UID) *record {
	r := g.pods[uid]
	if r == nil {
		r = &record{uid: uid, view: runtime.Pod{UID: uid, ObservedAt: g.health.listed}, seen: g.health.listed}
		g.pods[uid] = r
	}
	return r
}

// want asks for an inspection of r that has not begun yet. The caller holds mu.
func (g *Generator) want(r *record, after time.Time, urgent bool) *look {
	l := r.next
	if l == nil {
		l = &look{r: r, asked: time.Now(), done: make(chan struct{})}
		r.next = l
		l.urgent = urgent
		g.enqueue(l)
	} else if urgent && !l.urgent {
		l.urgent = true
		g.enqueue(l)
	}
	if after.After(l.after) {
		l.after = after
	}
	g.dispatch()
	return l
}

// enqueue puts l in line, unless the pod's present inspection must end first.
func (g *Generator) enqueue(l *look) {
	if l.r.cur != nil {
		return
	}
	l.lane = &g.healthy
	if l.r.stuck {
		l.lane = &g.suspect
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
	for _, lane := range []*lane{&g.healthy, &g.suspect} {
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
func (r *record) begin(l *look) {
	r.cur, r.next, r.last, r.began = l, nil, l.seq, l.began
	l.hinted, r.hinted = r.hinted, false
	l.listed, r.listed = r.listed, 0
}

// inspect looks at one pod and makes the result known.
func (g *Generator) inspect(l *look) {
	uid := l.r.uid
	ctx, cancel := context.WithTimeout(g.ctx, g.cfg.Timeout)
	stuck := time.AfterFunc(g.cfg.Stuck, func() { g.getStuck(l) })
	var pod runtime.Pod
	err := safe.Call(g.cfg.Logger, "inspect pod", func() (err error) { pod, err = g.cfg.Runtime.Pod(ctx, uid); return err })
	stuck.Stop()
	cancel()
	took := time.Since(l.began)

	switch {
	case err == nil:
		pod.UID, pod.ObservedAt = uid, l.began
		if pod.Name == "" { // a pod that is gone keeps its name for those who tell of it
			pod.Namespace, pod.Name = l.r.view.Namespace, l.r.view.Name
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
		h(uid, l.began.Sub(l.asked), took, err)
	}
}

func (g *Generator) store(uid types.UID, pod runtime.Pod, err error, at time.Time) {
	safe.Do(g.cfg.Logger, "store pod", func() { g.cfg.Store.Set(uid, pod, err, at) })
}

// finish takes the result of l into account and goes on to what waits for it.
func (g *Generator) finish(l *look) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := l.r
	r.cur = nil
	if !l.freed {
		l.lane.free++
		r.stuck = false
	}
	l.freed = true // whatever stuck timer still runs comes too late
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

func (g *Generator) succeed(r *record, l *look) {
	events := diff(r.view, l.pod)
	switch {
	case len(events) > 0:
	case r.fails > 0:
		events = []Event{{Kind: PodSync, UID: r.uid}}
	case l.hinted && empty(&r.view) && empty(&l.pod):
		// Something of this pod came and went since the last look.
		events = []Event{{Kind: ContainerRemoved, UID: r.uid}}
	}
	g.publish(r.view, l.pod, events)
	former := r.print
	r.view, r.seen, r.touch, r.print = l.pod, l.began, l.touch, g.print(&l.pod)
	r.stray.judge(l.listed, former, r.print, time.Now())
	r.fails, r.fault, r.since = 0, nil, time.Time{}
	if r.retry != nil {
		r.retry.Stop()
		r.retry = nil
	}
}

// fail has r looked at again, sooner at first and later more rarely.
func (g *Generator) fail(r *record, l *look) {
	if r.since.IsZero() {
		r.since = l.began
	}
	r.fault = l.err
	wait := g.cfg.Period / 2 << min(r.fails, 5)
	r.fails++
	if r.retry != nil {
		r.retry.Stop()
	}
	r.retry = time.AfterFunc(wait, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.stopped && r.fails > 0 {
			g.want(r, time.Time{}, false)
		}
	})
}

// getStuck lets others use the slot of an inspection that takes too long, and has
// the pod wait among its like from now on. The whole runtime may hang as well:
// a listing finds out.
func (g *Generator) getStuck(l *look) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.freed || g.stopped {
		return
	}
	l.freed, l.r.stuck = true, true
	if l.r.since.IsZero() {
		l.r.since = l.began
	}
	l.lane.free++
	g.dispatch()
	g.Relist()
}
