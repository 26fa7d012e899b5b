package pleg

import (
	"time"

	"github.com/sublet-dev/agent/runtime"
)

const (
	// minInitPeriod is the least time between two inspections for the end of init containers, of all pods together, if there are several.
	minInitPeriod = 20 * time.Millisecond
	// soloInitPeriod is the same for a single pod, whose init containers often end within milliseconds.
	soloInitPeriod = 5 * time.Millisecond
	// initFraction is the part of the time that an init container has run after which its pod is inspected.
	initFraction = 4
)

// initWait is the wait for the end of a pod's init container. The rest of the pod cannot start before, and without an event stream
// nothing but a relist would show it.
type initWait struct {
	id     string // of the container
	since  time.Time
	timer  *time.Timer // nil: not started
	listed bool        // relists are frequent enough for a container that runs for so long
}

// inspectInit has the pod inspected soon if one of its init containers runs and the runtime has no event stream: the shorter it has
// run, the sooner, until relists are as frequent. The caller holds mu.
func (g *Generator) inspectInit(r *podRecord) {
	id := runningInit(&r.observed)
	if id == "" || g.stream.open {
		g.endInitWait(r)
		return
	}
	w := r.initWait
	if w == nil || w.id != id {
		g.endInitWait(r)
		w = &initWait{id: id, since: time.Now()}
		r.initWait = w
		g.initWaits++
	}
	if w.listed {
		return
	}
	delay := time.Since(w.since) / initFraction
	if delay >= g.cfg.RelistPeriod {
		w.listed = true
		g.initWaits--
		return
	}
	period := minInitPeriod * time.Duration(g.initWaits)
	if g.initWaits == 1 {
		period = soloInitPeriod
	}
	delay = max(delay, period)
	if w.timer != nil {
		w.timer.Reset(delay)
		return
	}
	w.timer = time.AfterFunc(delay, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.stopped && r.initWait == w {
			g.deferInspection(r)
		}
	})
}

// endInitWait ends the wait, if there is one. The caller holds mu.
func (g *Generator) endInitWait(r *podRecord) {
	if r.initWait == nil {
		return
	}
	if r.initWait.timer != nil {
		r.initWait.timer.Stop()
	}
	if !r.initWait.listed {
		g.initWaits--
	}
	r.initWait = nil
}

// runningInit returns the id of a running init container of the pod.
func runningInit(pod *runtime.Pod) string {
	for i := range pod.Containers {
		if c := &pod.Containers[i]; c.Type == runtime.Init && c.State == runtime.Running {
			return c.ID
		}
	}
	return ""
}
