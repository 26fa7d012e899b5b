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

// Run counts the files of the tracked pods, one pod at a time and each about once per
// Config.DiskUsagePeriod, until ctx is done. For five minutes after a
// [Provider.RefreshDiskUsage] it counts those of all pods. It returns nil and must be
// called once only.
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
			wait = min(pause, emptyPause) // the first pods do not wait for a full period
		case p.countSome(ctx, &round[0], time.Time{}):
			round = round[1:]
		default: // suspended: it continues after the other pods
			round = append(round[1:], round[0])
			wait = min(pause, 2*countSlice)
		}
		timer.Reset(wait)
	}
}

const (
	// emptyPause is the longest wait before pods are listed again while there are none.
	emptyPause = 10 * time.Second
	// countSlice is how long the files of one pod are counted at a time, so that a pod with
	// very many files does not delay the others.
	countSlice = 500 * time.Millisecond
	// countsKept is the maximum number of suspended counts, because each has a few
	// directories open. Further ones start from the beginning.
	countsKept = 16
	// onDemandDuration is how long the files of all pods are counted after a request,
	// because tools repeat it.
	onDemandDuration = 5 * time.Minute
)

// RefreshDiskUsage counts the files of all pods whose last count is not newer than since,
// the oldest first. It blocks until all are counted or ctx is done; Run continues the
// counts that have not ended. [Provider.Usage] returns the results, and during a count
// the result so far.
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

// round returns the pods whose files Run counts in the next period.
func (p *Provider) round() []Pod {
	p.mu.Lock()
	all := !p.asked.IsZero() && time.Since(p.asked) <= onDemandDuration
	p.mu.Unlock()
	p.groups().kept.sweep() // for callers that stop to call Usage
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

// counted returns when the last count of the pod's files ended, or the zero time.
func (p *Provider) counted(uid types.UID) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.disks[uid].at
}

// refresh counts the files of the pods that were not counted since. Pods with very many
// files are counted in slices between the others.
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

// keepCount stores the result of a count. A suspended count is kept to be continued.
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
		c.close() // it starts from the beginning later
		return
	}
	p.counts[uid] = c
}

// dropCounts ends the suspended counts of pods that Config.Pods does not return any more.
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

// stopCounts ends all suspended counts.
func (p *Provider) stopCounts() { p.closeCounts(func(types.UID) bool { return true }) }

// closeCounts ends the selected suspended counts. It waits for the slice under way.
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

// diskOf returns the disk usage of a pod: the last complete count, combined with the
// result so far of the one under way. The caller holds p.mu.
func (p *Provider) diskOf(uid types.UID, since time.Time) podDisk {
	return p.disks[uid].with(p.partial[uid], since)
}
