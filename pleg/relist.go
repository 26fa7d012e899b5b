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
	gate := time.AfterFunc(g.cfg.SlowInspectionThreshold, g.allowInspections)
	defer gate.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	var prints []uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-g.relistCh:
		}
		prints = g.listOnce(ctx, prints[:0])
		g.allowInspections()
		next.Reset(g.untilNext())
	}
}

func (g *Generator) allowInspections() {
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
		return g.cfg.RelistPeriod
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
			prints = append(prints, g.fingerprint(&pods[i]))
		}
		changed = g.compare(pods, prints, began)
	} else {
		err = fmt.Errorf("list pods: %w", err)
		if g.health.failed(g, err) {
			g.cfg.Logger.Warn("pods cannot be listed", slog.Any("err", err))
		}
	}
	for _, uid := range changed {
		g.enqueueUnlessWorking(uid)
	}
	if h := g.cfg.Hooks.Relisted; h != nil {
		h(time.Since(began), len(pods), len(changed), err)
	}
	return prints
}

// compare takes a listing in, and returns the pods that it shows to have changed.
func (g *Generator) compare(pods []runtime.Pod, prints []uint64, began time.Time) []types.UID {
	g.mu.Lock()
	missed := 0
	now := time.Now()
	g.relistSeq++
	g.health.answered(began)
	var changed []types.UID
	var gone []*podRecord
	mark := func(r *podRecord, says uint64) {
		if r.flapping.known(says, now) {
			return
		}
		if g.stream.open && r.idle() {
			missed++
		}
		r.listed = says
		g.deferInspection(r)
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
			r.observedAt = time.Time{}
		}
		r.relistSeq = g.relistSeq
		if r.fingerprint != prints[i] {
			mark(r, prints[i])
		}
	}
	for _, r := range g.pods {
		if r.relistSeq == g.relistSeq {
			continue
		}
		switch {
		case !empty(&r.observed):
			mark(r, unlistedFingerprint)
		case r.idle() && r.observedAt.Before(began):
			r.current = &inspection{r: r} // none is to begin whose result would be deleted as well
			gone = append(gone, r)
		case r.observedAt.IsZero():
			g.markAbsent(r, began)
		}
	}
	missed = g.stream.markOpen(missed, &g.cfg)
	g.mu.Unlock()
	g.delete(gone)
	if h := g.cfg.Hooks.RuntimeEventsMissed; h != nil && missed > 0 {
		h(missed)
	}
	return changed
}

// delete forgets pods that are gone from the runtime. One that was asked for
// meanwhile is kept, and inspected now.
func (g *Generator) delete(gone []*podRecord) {
	for _, r := range gone {
		safe.Do(g.cfg.Logger, "delete pod", func() { g.cfg.Cache.Delete(r.uid) })
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range gone {
		r.current = nil
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

// markAbsent answers those who wait for a pod that the first listing does not have:
// there is nothing to inspect unless something happened since it began.
func (g *Generator) markAbsent(r *podRecord, began time.Time) {
	l := r.next
	if l == nil || r.current != nil || r.eventReceived || r.failures > 0 || !l.newerThan.Before(began) {
		return
	}
	r.observed.ObservedAt, r.observedAt, r.next = began, began, nil
	l.pod = r.observed
	close(l.done)
}

// unlistedFingerprint stands for the print of a pod that a listing lacks.
const unlistedFingerprint = 1

// fingerprint returns a number that is the same for two views of a pod in which the
// same sandboxes and containers are in the same states, in any order. It is 0 for
// a pod that has none.
func (g *Generator) fingerprint(p *runtime.Pod) uint64 {
	var sum uint64
	for i := range p.Sandboxes {
		s := &p.Sandboxes[i]
		sum += mix64(maphash.String(g.seed, s.ID) + uint64(s.State))
	}
	for i := range p.Containers {
		c := &p.Containers[i]
		sum += mix64(maphash.String(g.seed, c.ID) + uint64(c.State) + 16)
	}
	return sum
}

// mix64 scatters the bits of x, so that sums of mixed numbers do not collide.
func mix64(x uint64) uint64 {
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return x ^ x>>32
}

// flapDetector is a listing that differs from what the inspection which it caused has
// found, though that found nothing new: the runtime contradicts itself. Such a
// listing causes an inspection more and more rarely, up to once a minute.
type flapDetector struct {
	print uint64
	wait  time.Duration
	until time.Time
}

// known reports that a listing need not be looked into.
func (s *flapDetector) known(says uint64, now time.Time) bool {
	return says == s.print && now.Before(s.until)
}

// observe takes in what an inspection found that was caused by a listing, if any.
func (s *flapDetector) observe(listed, former, found uint64, now time.Time) {
	if found != former || listed == found {
		*s = flapDetector{}
	}
	if listed == 0 || listed == found || found != former {
		return
	}
	s.wait = min(max(2*s.wait, time.Second), time.Minute)
	s.print, s.until = listed, now.Add(s.wait)
}
