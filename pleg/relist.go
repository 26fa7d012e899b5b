package pleg

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// relistPeriodically relists until ctx is done.
func (g *Generator) relistPeriodically(ctx context.Context) {
	// Inspections wait for the first relist, because it shows for most pods that
	// they are absent. They do not wait for one that hangs.
	startTimer := time.AfterFunc(g.cfg.SlowInspectionThreshold, g.allowInspections)
	defer startTimer.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	var fingerprints []uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-g.relistCh:
		}
		fingerprints = g.relist(ctx, fingerprints[:0])
		g.allowInspections()
		next.Reset(g.relistPeriod())
	}
}

// allowInspections starts the inspections that have waited for a relist.
func (g *Generator) allowInspections() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.started = true
	g.dispatch()
}

// relistPeriod returns the time from the end of a relist to the next one.
func (g *Generator) relistPeriod() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stream.open || g.health.listErr != nil {
		return g.cfg.RelistPeriod
	}
	return g.stream.relistPeriod
}

// relist lists all pods and requests an inspection of those that differ from their
// observed state. The list itself is never stored, because it may be older than an
// inspection that ended meanwhile. It returns fingerprints for reuse.
func (g *Generator) relist(ctx context.Context, fingerprints []uint64) []uint64 {
	startTime := time.Now()
	g.health.relistStarted(g, startTime)
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeout)
	var pods []runtime.Pod
	err := safe.Call(g.cfg.Logger, "list pods", func() (err error) { pods, err = g.cfg.Runtime.Pods(ctx); return err })
	cancel()
	if g.ctx.Err() != nil {
		return fingerprints
	}
	changed := 0
	if err == nil {
		if g.health.hasWarned(g) {
			g.cfg.Logger.Info("relist recovered")
		}
		for i := range pods {
			fingerprints = append(fingerprints, g.fingerprint(&pods[i]))
		}
		changed = g.compare(pods, fingerprints, startTime)
	} else {
		err = fmt.Errorf("list pods: %w", err)
		if g.health.relistFailed(g, err) {
			g.cfg.Logger.Warn("relist failed", logattr.Err(err))
		}
	}
	if h := g.cfg.Hooks.Relisted; h != nil {
		h(time.Since(startTime), len(pods), changed, err)
	}
	return fingerprints
}

// compare compares the listed pods with the observed ones. It has those that have
// changed inspected, and returns how many they are. It deletes the pods that are in
// neither.
func (g *Generator) compare(pods []runtime.Pod, fingerprints []uint64, startTime time.Time) (changed int) {
	g.mu.Lock()
	c := comparison{g: g, now: time.Now()}
	g.relistSeq++
	g.health.relistSucceeded(startTime)
	for i := range pods {
		if pods[i].UID != "" { // a pod without UID cannot be inspected
			c.compareListed(&pods[i], fingerprints[i], startTime)
		}
	}
	for _, r := range g.pods {
		if r.relistSeq != g.relistSeq {
			c.compareUnlisted(r, startTime)
		}
	}
	missed := g.stream.adjustRelistPeriod(c.missed, time.Now(), &g.cfg)
	g.mu.Unlock()
	g.delete(c.absent)
	if h := g.cfg.Hooks.RuntimeEventsMissed; h != nil && missed > 0 {
		h(missed)
	}
	return c.changed
}

// comparison collects the result of a relist. The Generator's mu is held while it
// is used.
type comparison struct {
	g       *Generator
	now     time.Time
	changed int
	absent  []*podRecord // to be deleted
	missed  int          // changes that were not known before
}

func (c *comparison) compareListed(pod *runtime.Pod, fingerprint uint64, startTime time.Time) {
	r := c.g.pods[pod.UID]
	if r == nil {
		// The pod exists, so earlier relists do not show that it is absent.
		r = c.g.record(pod.UID)
		r.observedAt = time.Time{}
	}
	r.relistSeq = c.g.relistSeq
	if r.fingerprint == fingerprint {
		return
	}
	var listed *listedPod
	if c.g.listedInspector != nil && hasAllOf(pod, &r.observed) {
		listed = &listedPod{*pod, startTime}
	}
	c.markChanged(r, fingerprint, listed)
}

// goOnFrom requests an inspection that goes on from the list, if that is still new enough when it begins. The caller
// holds mu.
func (g *Generator) goOnFrom(listed *listedPod, r *podRecord) {
	if r.next == nil {
		g.enqueue(g.newInspection(r))
	}
	r.next.listed = listed
	g.dispatch()
}

// hasAllOf reports whether a list has all sandboxes and containers that were observed. Others are looked for
// before they count as removed.
func hasAllOf(listed, observed *runtime.Pod) bool {
	for i := range observed.Sandboxes {
		if !slices.ContainsFunc(listed.Sandboxes, func(s runtime.Sandbox) bool { return s.ID == observed.Sandboxes[i].ID }) {
			return false
		}
	}
	for i := range observed.Containers {
		if !slices.ContainsFunc(listed.Containers, func(c runtime.Container) bool { return c.ID == observed.Containers[i].ID }) {
			return false
		}
	}
	return true
}

func (c *comparison) compareUnlisted(r *podRecord, startTime time.Time) {
	switch {
	case !r.observed.IsEmpty():
		c.markChanged(r, unlistedFingerprint, nil)
	case r.isIdle() && r.observedAt.Before(startTime):
		c.absent = append(c.absent, r.reserve())
	case r.observedAt.IsZero():
		c.g.markAbsent(r, startTime)
	}
}

// markChanged has a pod inspected, from the list if that is given.
func (c *comparison) markChanged(r *podRecord, fingerprint uint64, listed *listedPod) {
	if r.flapping.shouldIgnore(fingerprint, c.now) {
		return
	}
	if r.isIdle() {
		c.missed++
	}
	r.listedFingerprint, r.listed = fingerprint, listed
	c.g.deferInspection(r)
	c.changed++
}

// markAbsent completes the queued inspection of a pod that the first relist did
// not contain. The pod need not be inspected unless something happened after that
// relist began.
func (g *Generator) markAbsent(r *podRecord, startTime time.Time) {
	in := r.next
	if in == nil || r.current != nil || r.eventReceived || r.failures > 0 || !in.newerThan.Before(startTime) {
		return
	}
	r.observed.ObservedAt, r.observedAt, r.next = startTime, startTime, nil
	in.pod = r.observed
	close(in.done)
}

// unlistedFingerprint is the fingerprint of a pod that a relist does not contain.
const unlistedFingerprint = 1

// fingerprint returns a number that is equal for two states of a pod with the same
// sandboxes and containers in the same states, in any order. It is 0 for a pod
// without any.
func (g *Generator) fingerprint(p *runtime.Pod) uint64 {
	var sum uint64
	if p.Object != nil {
		sum = g.objectFingerprint(p.Object)
	}
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

// flapDetector detects a runtime whose relists contradict its inspections: a relist
// differs from the observed state, and the inspection that it causes finds no
// change. Such a relist causes inspections with a back-off of up to a minute.
type flapDetector struct {
	fingerprint uint64 // of the contradicting relist
	backOff     time.Duration
	until       time.Time
}

// shouldIgnore reports whether a relist with the given fingerprint need not cause
// an inspection.
func (d *flapDetector) shouldIgnore(fingerprint uint64, now time.Time) bool {
	return fingerprint == d.fingerprint && now.Before(d.until)
}

// observe records the result of an inspection. The fingerprint listed is that of
// the relist that caused it, 0 if none did.
func (d *flapDetector) observe(listed, previous, current uint64, now time.Time) {
	if current != previous || listed == current {
		*d = flapDetector{}
	}
	if listed == 0 || listed == current || current != previous {
		return
	}
	d.backOff = min(max(2*d.backOff, time.Second), time.Minute)
	d.fingerprint, d.until = listed, now.Add(d.backOff)
}
