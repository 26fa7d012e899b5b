package pleg

import (
	"time"

	"github.com/sublet-dev/agent/internal/safe"
)

// absentPod is a pod that an inspection has found absent.
type absentPod struct {
	r  *podRecord
	at time.Time // r.observedAt
}

// absentFor is how long a pod that was found absent is kept: its last runtime events
// may be on their way, and they need its name.
const absentFor = 10 * time.Second

// takeAbsent returns the pods that have been absent for a while, to be deleted. With
// an event stream a relist would delete them too, minutes later, and meanwhile pods
// that come and go would add up. A pod that is in use is left to the next inspection
// or relist, as are all during a relist, which may have listed them while they existed. The
// caller holds mu.
func (g *Generator) takeAbsent(now time.Time) []*podRecord {
	if g.stopped || !g.health.listingSince.IsZero() {
		return nil
	}
	var absent []*podRecord
	for len(g.absent) > 0 && now.Sub(g.absent[0].at) >= absentFor {
		r, at := g.absent[0].r, g.absent[0].at
		g.absent = g.absent[1:]
		isUsed := !r.isIdle() || g.isSyncing(r.uid) || r.flapping != (flapDetector{})
		if g.pods[r.uid] == r && r.observed.IsEmpty() && r.observedAt.Equal(at) && !isUsed {
			absent = append(absent, r.reserve())
		}
	}
	return absent
}

// reserve keeps inspections of r from beginning until delete has removed it. It
// returns r.
func (r *podRecord) reserve() *podRecord {
	r.current = &inspection{r: r}
	return r
}

// delete removes reserved pods, which are absent from the runtime. A pod for which an
// inspection was requested meanwhile is kept, and inspected.
func (g *Generator) delete(absent []*podRecord) {
	if len(absent) == 0 {
		return
	}
	for _, r := range absent {
		safe.Do(g.cfg.Logger, "delete pod", func() { g.cfg.Cache.Delete(r.uid) })
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range absent {
		r.current = nil
		if r.isIdle() {
			delete(g.pods, r.uid)
		} else if r.next != nil {
			g.enqueue(r.next)
		}
	}
	g.dispatch()
}
