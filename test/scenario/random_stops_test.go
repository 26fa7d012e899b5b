package scenario

import (
	"slices"
	"time"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// stops: the agent stops a container for a reason only, with its hook first and SIGKILL at the end of the grace period.
func (k *rules) stops() {
	for _, c := range k.all {
		first, ok := c.firstStop()
		if !ok || c.outside {
			continue
		}
		reason, grace := k.reason(c, first)
		if reason == "" {
			k.h.broke("%s is stopped at %v for no reason", c, first)
			continue
		}
		spec := containerOf(k.pod, c.name)
		if spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil && len(c.terms) > 0 && reason != "postStart" && reason != "lost start" && !k.h.faults.Strikes("", "ExecSync") {
			if len(c.preStop) == 0 {
				k.h.broke("%s gets its stop signal before its preStop hook (%s)", c, reason)
			} else if h := c.preStop[0]; (!h.ended || h.end > c.terms[0]) && c.terms[0] < h.begin+grace {
				k.h.broke("%s gets its stop signal before the end of its preStop hook (%s)", c, reason)
			}
		}
		for _, kill := range c.kills {
			begin := k.begin(c, first, grace)
			if k.h.strike([]runtimetest.FaultKind{runtimetest.Fail, runtimetest.Hang, runtimetest.Delay}, "StopContainer", "ExecSync") {
				begin = c.start // attempts that the container has not seen have used up a part of the grace period
			}
			earliest := max(begin+grace, first+min(grace, 2*time.Second))
			for _, e := range k.l.ends {
				if (e.container == "" || e.container == c.name) && e.at <= kill {
					earliest = min(earliest, max(max(e.at, begin)+e.grace, first+min(e.grace, 2*time.Second)))
				}
			}
			if kill < earliest-50*time.Millisecond {
				k.h.broke("%s is killed %v after %v, grace period %v (%s)", c, kill-first, first, grace, reason)
			}
		}
		latest := first + grace
		if reason == "probe" && spec.StartupProbe != nil { // only the liveness probe has a grace period
			latest = first + time.Duration(*k.pod.Spec.TerminationGracePeriodSeconds)*time.Second
		}
		for _, e := range k.l.ends { // a request that comes meanwhile begins the stop again
			if (e.container == "" || e.container == c.name) && e.at >= first && e.at <= latest {
				latest = max(latest, e.at+e.grace)
			}
		}
		if c.end > latest+10*time.Second && !k.h.agentAway(first, c.end) {
			k.h.broke("%s ends %v after the begin of its stop, grace period %v (%s)", c, c.end-first, grace, reason)
		}
	}
}

// begin returns when the stop of all containers of the pod began of which the first stop of a container is a part.
func (k *rules) begin(c *run, first, grace time.Duration) time.Duration {
	begin := first
	for _, o := range k.all {
		at, ok := o.firstStop()
		begins := []time.Duration{at}
		for _, e := range k.l.ends { // which begin a stop again that is under way
			if e.container == "" && e.at > at && e.at <= o.end {
				begins = append(begins, e.at)
			}
		}
		for _, at := range begins {
			if ok && at < first && at >= first-grace-2*time.Second && (o.end <= first || at+grace <= first) {
				begin = min(begin, at)
			}
		}
	}
	return begin
}

// reason returns why the agent may stop the container, and the grace period.
func (k *rules) reason(c *run, at time.Duration) (string, time.Duration) {
	pod := k.l.spec(at)
	grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	for _, e := range k.l.ends {
		if e.at <= at && (e.container == "" || e.container == c.name) && (e.why != "restart" || e.at >= c.start) {
			if e.why == "deletion" {
				return e.why, e.grace
			}
			return e.why, min(grace, e.grace)
		}
	}
	spec := containerOf(pod, c.name)
	if k.done(at) {
		return "the pod is done", grace
	}
	if spec != nil && spec.Image != c.image {
		return "image", grace
	}
	for _, t := range k.restartAlls() {
		if t >= c.start && t <= at {
			return "restart of all", grace
		}
	}
	for _, h := range c.hooks {
		if h.ended && (h.code != 0 || h.end <= at && k.h.faults.Strikes(runtimetest.Drop, "ExecSync")) { // its result was lost
			return "postStart", grace
		}
	}
	if from, ok := k.failsFrom(c); ok && from <= at {
		if spec.LivenessProbe != nil && spec.LivenessProbe.TerminationGracePeriodSeconds != nil {
			grace = min(grace, time.Duration(*spec.LivenessProbe.TerminationGracePeriodSeconds)*time.Second)
		}
		return "probe", grace
	}
	if k.h.faults != nil && spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PostStart != nil && len(c.hooks) == 0 {
		return "lost start", grace
	}
	for _, o := range k.all {
		if o.sandbox == c.sandbox && o.outside && o.ended && o.end >= c.start {
			return "sandbox", grace
		}
	}
	for _, t := range k.restartAlls() { // the sync that has started it did not know of that
		if t < c.start && t >= c.start-k.lag() && at <= c.start+k.lag() {
			return "restart of all", grace
		}
	}
	return "", 0
}

// firstStop returns when the agent began to stop the run.
func (c *run) firstStop() (time.Duration, bool) {
	var all []time.Duration
	for _, h := range c.preStop {
		all = append(all, h.begin)
	}
	all = append(append(all, c.terms...), c.kills...)
	if len(all) == 0 {
		return 0, false
	}
	return slices.Min(all), true
}

// stoppedAfter reports whether the run was stopped after that time, if there is one.
func (c *run) stoppedAfter(at time.Duration, ok bool) bool {
	first, stopped := c.firstStop()
	return ok && stopped && !c.outside && first >= at
}

// sidecars are stopped after all others, in reverse order.
func (k *rules) sidecars() {
	for _, c := range k.all {
		first, ok := c.firstStop()
		if c.name[0] != 's' || len(c.terms) == 0 || c.outside || !ok {
			continue
		}
		reason, grace := k.reason(c, first)
		if !slices.Contains([]string{"deletion", "removal", "eviction", "the pod is done", "restart of all"}, reason) {
			continue
		}
		at := c.terms[0]
		for _, o := range k.all {
			if o.uid == c.uid && o != c && o.start < at && (!o.ended || o.end > at) && k.rank(o.name) > k.rank(c.name) && at < k.begin(c, first, grace)+grace-50*time.Millisecond {
				shorter := slices.ContainsFunc(k.l.ends, func(e timedEnd) bool { return e.at <= at && e.at+e.grace <= at })
				if !shorter {
					k.h.broke("%s is stopped while %s runs (%s)", c, o, reason)
				}
			}
		}
	}
}

// rank returns a number that is greater the earlier a container is stopped.
func (k *rules) rank(name string) int {
	for i, c := range k.pod.Spec.InitContainers {
		if c.Name == name && name[0] == 's' {
			return i
		}
	}
	return 1000
}

// ends: a pod that is deleted ends in time.
func (k *rules) ends() {
	for _, e := range k.l.ends {
		if e.why != "deletion" && e.why != "removal" {
			continue
		}
		from := e.at
		for _, a := range k.h.away {
			if a.from <= from+slack+e.grace && a.to > from {
				from = a.to
			}
		}
		if limit := from + e.grace + slack; k.l.deleted == 0 || k.l.deleted > limit {
			k.h.broke("%s is gone %v, deleted at %v within %v", k.l.uid, k.l.deleted, e.at, e.grace)
		}
	}
}

// agentAway reports whether no agent ran for some of this time, or faults may have delayed it.
func (h *history) agentAway(from, to time.Duration) bool {
	if h.faults != nil {
		return true
	}
	for _, a := range h.away {
		if a.from <= to && (a.to == 0 || a.to >= from) {
			return true
		}
	}
	return false
}
