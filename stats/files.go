package stats

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
)

// Run counts the files of the pods that are watched, one after the other, each
// about every DiskEvery, until ctx is done; of all pods, for some minutes after
// Count was called.
func (p *Provider) Run(ctx context.Context) error {
	defer p.stopCounts()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var round []Pod
	pause := p.cfg.DiskUsagePeriod
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-p.countCh:
		}
		if len(round) == 0 {
			round = p.round()
			pause = p.cfg.DiskUsagePeriod / time.Duration(max(len(round), 1))
		}
		wait := pause
		switch {
		case len(round) == 0:
			wait = min(pause, emptyPause) // the first pods are not to wait for a whole round
		case p.countSome(ctx, &round[0], time.Time{}):
			round = round[1:]
		default: // it takes its turn again after the others
			round = append(round[1:], round[0])
			wait = min(pause, 2*countSlice)
		}
		timer.Reset(wait)
	}
}

const (
	emptyPause = 10 * time.Second
	// countSlice is for how long a pod's files are counted before it is another's
	// turn: one with very many does not hold up the others.
	countSlice = 500 * time.Millisecond
	// countsKept is how many counts that are not done are gone on with. Each holds a
	// few directories open.
	countsKept = 16
	// onDemandDuration is how long the files of all pods are counted after a request,
	// because tools repeat it.
	onDemandDuration = 5 * time.Minute
)

// RefreshDiskUsage counts the files of the pods that were not counted since, those first
// that were counted longest ago, until ctx is done. What is left then, Run counts,
// going on where this one left off. Usage tells what it came to, and meanwhile what
// was counted so far.
func (p *Provider) RefreshDiskUsage(ctx context.Context, since time.Time) {
	now := time.Now()
	p.mu.Lock()
	idle := now.Sub(p.asked) > onDemandDuration
	p.asked = now
	p.mu.Unlock()
	pods := slices.Clone(p.cfg.Pods())
	slices.SortStableFunc(pods, func(a, b Pod) int { return p.counted(a.Pod.UID).Compare(p.counted(b.Pod.UID)) })
	p.refresh(ctx, pods, since)
	if idle {
		notify.Send(p.countCh)
	}
}

// round are the pods whose files Run is to count now.
func (p *Provider) round() []Pod {
	p.mu.Lock()
	all := !p.asked.IsZero() && time.Since(p.asked) <= onDemandDuration
	p.mu.Unlock()
	p.groups().kept.sweep() // nothing may be measured for a long time
	p.dropCounts()
	switch {
	case all:
		return p.cfg.Pods()
	case p.cfg.TrackedPods != nil:
		return p.cfg.TrackedPods()
	default:
		return slices.DeleteFunc(slices.Clone(p.cfg.Pods()), func(pod Pod) bool { return !pod.TrackDiskUsage })
	}
}

// counted is when the pod's files were counted last.
func (p *Provider) counted(uid types.UID) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.disks[uid].at
}

// refresh counts the files of the pods that were not counted since, those with very
// many along with the others.
func (p *Provider) refresh(ctx context.Context, pods []Pod, since time.Time) {
	for left := slices.Clone(pods); len(left) > 0 && ctx.Err() == nil; {
		left = slices.DeleteFunc(left, func(pod Pod) bool { return p.countSome(ctx, &pod, since) })
	}
}

// countSome continues counting the files of a pod for countSlice, and reports whether all
// are counted, by this call or another one since. One pod is counted at a time. It
// returns false if ctx is done before it can start.
func (p *Provider) countSome(ctx context.Context, pod *Pod, since time.Time) (done bool) {
	select {
	case p.counting <- struct{}{}:
		defer func() { <-p.counting }()
	case <-ctx.Done():
		return false
	}
	uid := pod.Pod.UID
	if !since.IsZero() && p.counted(uid).After(since) {
		return true
	}
	p.mu.Lock()
	c := p.counts[uid]
	p.mu.Unlock()
	if c == nil {
		c = newPodCount(pod)
	}
	slice, cancel := context.WithTimeout(ctx, countSlice)
	defer cancel()
	done = c.run(slice)
	p.keepCount(uid, c, done)
	if err := c.err(); done && err != nil {
		p.cfg.Logger.Warn("measuring pod disk usage failed", logattr.Pod(pod.Pod), logattr.PodUID(uid), logattr.Err(err))
	}
	return done
}

// keepCount takes up what a count came to. One that is not done is kept, to be gone
// on with.
func (p *Provider) keepCount(uid types.UID, c *podCount, done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if done {
		delete(p.counts, uid)
		delete(p.partial, uid)
		p.disks[uid] = c.disk
		return
	}
	p.partial[uid] = c.soFar()
	if _, there := p.counts[uid]; !there && len(p.counts) >= countsKept {
		c.close() // it starts again later
		return
	}
	p.counts[uid] = c
}

// dropCounts ends the counts of pods that are gone.
func (p *Provider) dropCounts() {
	p.mu.Lock()
	none := len(p.counts) == 0
	p.mu.Unlock()
	if none {
		return
	}
	there := make(map[types.UID]bool)
	for _, pod := range p.cfg.Pods() {
		there[pod.Pod.UID] = true
	}
	p.closeCounts(func(uid types.UID) bool { return !there[uid] })
}

// stopCounts ends all counts.
func (p *Provider) stopCounts() { p.closeCounts(func(types.UID) bool { return true }) }

func (p *Provider) closeCounts(which func(types.UID) bool) {
	p.counting <- struct{}{} // no count runs
	defer func() { <-p.counting }()
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, c := range p.counts {
		if which(uid) {
			c.close()
			delete(p.counts, uid)
		}
	}
	maps.DeleteFunc(p.partial, func(uid types.UID, _ podDisk) bool { return which(uid) })
}

// diskOf is what is known of a pod's files, with what a count that is under way came
// to so far. p.mu is held.
func (p *Provider) diskOf(uid types.UID, since time.Time) podDisk {
	return p.disks[uid].with(p.partial[uid], since)
}
