package pleg

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// list lists all pods now and then until ctx is done.
func (g *Generator) list(ctx context.Context) {
	// Inspections wait for the first listing, which tells of most pods that they
	// are absent. One that hangs must not hold them up.
	gate := time.AfterFunc(g.cfg.Stuck, g.openUp)
	defer gate.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	var prints []uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-g.again:
		}
		prints = g.listOnce(ctx, prints[:0])
		g.openUp()
		next.Reset(g.untilNext())
	}
}

func (g *Generator) openUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	g.dispatch()
}

// untilNext returns when to list again, counted from the end of a listing.
func (g *Generator) untilNext() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stream.open || g.health.listErr != nil {
		return g.cfg.Period
	}
	return g.stream.backstop
}

// listOnce lists all pods and has those inspected that are not as they were last
// seen. Nothing in the listing becomes part of a view: it may be older than an
// inspection that ended while it was under way. It returns prints for reuse.
func (g *Generator) listOnce(ctx context.Context, prints []uint64) []uint64 {
	began := time.Now()
	g.health.listing(g, began)
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeout)
	var pods []runtime.Pod
	err := safe.Call(g.cfg.Logger, "list pods", func() (err error) { pods, err = g.cfg.Runtime.Pods(ctx); return err })
	cancel()
	if g.ctx.Err() != nil {
		return prints
	}
	var changed []types.UID
	if err == nil {
		if g.health.failing(g) {
			g.cfg.Logger.Info("pods can be listed again")
		}
		for i := range pods {
			prints = append(prints, g.print(&pods[i]))
		}
		changed = g.compare(pods, prints, began)
	} else {
		err = fmt.Errorf("list pods: %w", err)
		if g.health.failed(g, err) {
			g.cfg.Logger.Warn("pods cannot be listed", slog.Any("err", err))
		}
	}
	for _, uid := range changed {
		g.unlessBusy(uid)
	}
	if h := g.cfg.Hooks.Listed; h != nil {
		h(time.Since(began), len(pods), len(changed), err)
	}
	return prints
}

// compare takes a listing in, and returns the pods that it shows to have changed.
func (g *Generator) compare(pods []runtime.Pod, prints []uint64, began time.Time) []types.UID {
	g.mu.Lock()
	missed := 0
	now := time.Now()
	g.round++
	g.health.answered(began)
	var changed []types.UID
	var gone []*record
	mark := func(r *record, says uint64) {
		if r.stray.known(says, now) {
			return
		}
		if g.stream.open && r.idle() {
			missed++
		}
		r.listed = says
		g.hold(r)
		changed = append(changed, r.uid)
	}
	for i := range pods {
		if pods[i].UID == "" {
			continue // nobody's: there is nothing to inspect it by
		}
		r := g.pods[pods[i].UID]
		if r == nil {
			// It was not absent in this listing, whatever absence the ones before tell.
			r = g.record(pods[i].UID)
			r.seen = time.Time{}
		}
		r.round = g.round
		if r.print != prints[i] {
			mark(r, prints[i])
		}
	}
	for _, r := range g.pods {
		if r.round == g.round {
			continue
		}
		switch {
		case !empty(&r.view):
			mark(r, unlisted)
		case r.idle() && r.seen.Before(began):
			r.cur = &look{r: r} // none is to begin whose result would be deleted as well
			gone = append(gone, r)
		case r.seen.IsZero():
			g.absent(r, began)
		}
	}
	missed = g.stream.trust(missed, &g.cfg)
	g.mu.Unlock()
	g.delete(gone)
	if h := g.cfg.Hooks.Missed; h != nil && missed > 0 {
		h(missed)
	}
	return changed
}

// delete forgets pods that are gone from the runtime. One that was asked for
// meanwhile is kept, and inspected now.
func (g *Generator) delete(gone []*record) {
	for _, r := range gone {
		safe.Do(g.cfg.Logger, "delete pod", func() { g.cfg.Store.Delete(r.uid) })
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range gone {
		r.cur = nil
		if r.idle() {
			delete(g.pods, r.uid)
		} else if r.next != nil {
			g.enqueue(r.next)
		}
	}
	if len(gone) > 0 {
		g.dispatch()
	}
}

// absent answers those who wait for a pod that the first listing does not have:
// there is nothing to inspect unless something happened since it began.
func (g *Generator) absent(r *record, began time.Time) {
	l := r.next
	if l == nil || r.cur != nil || r.hinted || r.fails > 0 || !l.after.Before(began) {
		return
	}
	r.view.ObservedAt, r.seen, r.next = began, began, nil
	l.pod = r.view
	close(l.done)
}

// unlisted stands for the print of a pod that a listing lacks.
const unlisted = 1

// print returns a number that is the same for two views of a pod in which the
// same sandboxes and containers are in the same states, in any order. It is 0 for
// a pod that has none.
func (g *Generator) print(p *runtime.Pod) uint64 {
	var sum uint64
	for i := range p.Sandboxes {
		s := &p.Sandboxes[i]
		sum += mix(maphash.String(g.seed, s.ID) + uint64(s.State))
	}
	for i := range p.Containers {
		c := &p.Containers[i]
		sum += mix(maphash.String(g.seed, c.ID) + uint64(c.State) + 16)
	}
	return sum
}

// mix scatters the bits of x, so that sums of mixed numbers do not collide.
func mix(x uint64) uint64 {
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return x ^ x>>32
}

// stray is a listing that differs from what the inspection which it caused has
// found, though that found nothing new: the runtime contradicts itself. Such a
// listing causes an inspection more and more rarely, up to once a minute.
type stray struct {
	print uint64
	wait  time.Duration
	until time.Time
}

// known reports that a listing need not be looked into.
func (s *stray) known(says uint64, now time.Time) bool {
	return says == s.print && now.Before(s.until)
}

// judge takes in what an inspection found that was caused by a listing, if any.
func (s *stray) judge(listed, former, found uint64, now time.Time) {
	if found != former || listed == found {
		*s = stray{}
	}
	if listed == 0 || listed == found || found != former {
		return
	}
	s.wait = min(max(2*s.wait, time.Second), time.Minute)
	s.print, s.until = listed, now.Add(s.wait)
}
