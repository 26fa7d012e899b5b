package scenario

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// attempt returns the run of a container with that number, or the last one before: a container that was created and
// never ran may have had the number.
func (k *rules) attempt(name string, n int) (found *run) {
	for _, c := range k.all {
		if c.name == name && c.attempt <= n {
			found = c
		}
	}
	return found
}

// truth: each status says what was so.
func (k *rules) truth() {
	for i := range k.l.statuses {
		s := &k.l.statuses[i]
		for c := range podspec.ContainerStatuses(&s.st) {
			k.state(s.at, c)
		}
		k.conditions(s)
	}
}

func (k *rules) second(at time.Duration) time.Time {
	return k.r.start.Add(at).Truncate(time.Second)
}

func (k *rules) state(at time.Duration, s *corev1.ContainerStatus) {
	run := k.attempt(s.Name, int(s.RestartCount))
	if r := s.State.Running; r != nil {
		if run == nil || run.start > at || !k.second(run.start).Equal(r.StartedAt.Time) {
			k.h.broke("%s of %s runs at %v, attempt %d, since %v", s.Name, k.l.uid, at, s.RestartCount, r.StartedAt)
		} else if run.ended && run.end < at-time.Minute && k.h.calm() { // syncs may be delayed
			k.h.broke("%s is Running at %v, and has ended at %v", run, at, run.end)
		}
	}
	if t := s.State.Terminated; t != nil && t.ContainerID != "" {
		k.termination(at, s, t)
	}
	if t := s.LastTerminationState.Terminated; t != nil {
		k.termination(at, s, t)
	} else if before := k.attempt(s.Name, int(s.RestartCount)-1); before != nil && before != run && s.State.Running != nil && k.h.calm() {
		k.h.broke("%s of %s has no last state at %v", s.Name, k.l.uid, at)
	}
	if s.Ready && s.State.Running == nil && (s.Name[0] != 'i' || s.State.Terminated == nil || s.State.Terminated.ExitCode != 0) {
		k.h.broke("%s of %s is ready at %v", s.Name, k.l.uid, at)
	}
	if s.Started != nil && *s.Started && s.State.Running == nil {
		k.h.broke("%s of %s is started at %v", s.Name, k.l.uid, at)
	}
}

// termination checks that a container has ended like this.
func (k *rules) termination(at time.Duration, s *corev1.ContainerStatus, t *corev1.ContainerStateTerminated) {
	if t.Reason == "ContainerStatusUnknown" && !k.h.calm() {
		return // the runtime has forgotten it
	}
	for _, c := range k.all {
		if c.name == s.Name && c.ended && c.end <= at && c.attempt <= int(s.RestartCount) && t.ExitCode == c.code &&
			k.second(c.end).Equal(t.FinishedAt.Time) && k.second(c.start).Equal(t.StartedAt.Time) &&
			(t.Reason == "OOMKilled") == c.oom && (t.ExitCode == 0) == (t.Reason == "Completed") {
			return
		}
	}
	k.h.broke("%s of %s has not ended like this at %v: %+v", s.Name, k.l.uid, at, t)
}

// calm reports whether neither faults nor a restart of the machine can have hidden something from the agent.
func (h *history) calm() bool { return h.faults == nil && len(h.reboots) == 0 }

// conditions checks that the conditions follow from the states of containers.
func (k *rules) conditions(s *timedStatus) {
	is := map[corev1.PodConditionType]bool{}
	for _, c := range s.st.Conditions {
		is[c.Type] = c.Status == corev1.ConditionTrue
	}
	ready := len(s.st.ContainerStatuses) > 0 && !podspec.IsTerminalPhase(s.st.Phase)
	regular := false
	for c := range podspec.ContainerStatuses(&s.st) {
		ready = ready && (c.Ready || c.Name[0] == 'i' || c.Name[0] == 'e')
		regular = regular || c.Name[0] == 'c' && c.Started != nil && *c.Started
	}
	if is[corev1.PodReady] != ready || is[corev1.ContainersReady] != ready {
		k.h.broke("Ready of %s at %v: %v %v", k.l.uid, s.at, is[corev1.PodReady], is[corev1.ContainersReady])
	}
	if regular && !is[corev1.PodInitialized] {
		k.h.broke("%s is not initialized at %v", k.l.uid, s.at)
	}
}

// late: containers are restarted, and stopped after a failed probe, without much delay.
func (k *rules) late() {
	const most = 90 * time.Second
	for _, c := range k.all {
		spec := containerOf(k.pod, c.name)
		if spec == nil {
			continue
		}
		end := c.end
		if !c.ended {
			end = k.r.now()
		}
		if at, ok := k.failsBy(c, spec); ok && at+most < end && !k.h.agentAway(c.start, end) {
			k.h.broke("%s runs until %v, its probe fails by %v", c, end, at)
		}
		if d := k.l.spec(end).Spec.ActiveDeadlineSeconds; d != nil {
			limit := k.l.specs[0].at + time.Duration(*d+*k.pod.Spec.TerminationGracePeriodSeconds)*time.Second + slack
			for _, s := range k.l.specs { // a deadline that was set late
				limit = max(limit, s.at+time.Duration(*k.pod.Spec.TerminationGracePeriodSeconds)*time.Second+slack)
			}
			if end > limit && len(k.l.ends) == 0 && !k.h.agentAway(limit-most, end) {
				k.h.broke("%s runs until %v, its deadline is %v", c, end, limit)
			}
		}
		for _, e := range k.l.ends {
			if e.why != "restart" && c.start > e.at+slack {
				k.h.broke("%s starts after %s at %v", c, e.why, e.at)
			}
		}
	}
	for i := range k.l.specs[len(k.l.specs)-1].pod.Spec.EphemeralContainers {
		if name := k.l.specs[len(k.l.specs)-1].pod.Spec.EphemeralContainers[i].Name; len(k.r.runsOf(k.l.uid, name)) > 1 {
			k.h.broke("%s of %s runs more than once", name, k.l.uid)
		}
	}
}

// failsBy returns when a probe must have failed.
func (k *rules) failsBy(c *run, spec *corev1.Container) (time.Duration, bool) {
	p := spec.LivenessProbe
	status := k.script(c, "http-status")
	if p == nil || status == "" {
		return 0, false
	}
	before, _, _ := strings.Cut(status, "=")
	from, _ := time.ParseDuration(before)
	from = max(from, time.Duration(p.InitialDelaySeconds)*time.Second, k.seconds(c, "listen-after"))
	if s := spec.StartupProbe; s != nil {
		from += time.Duration(s.InitialDelaySeconds+2*s.PeriodSeconds) * time.Second
	}
	return c.start + from + time.Duration(p.FailureThreshold+1)*time.Duration(p.PeriodSeconds)*time.Second + time.Duration(*k.pod.Spec.TerminationGracePeriodSeconds)*time.Second, true
}

// snapshot is what must not change at rest.
type snapshot struct {
	uid      string
	runs     int
	ended    int
	statuses int
	last     corev1.PodStatus
}

// still returns the state of the pods of which nothing has changed for a while.
func (h *history) still() map[string]snapshot {
	all := map[string]snapshot{}
	for _, name := range h.names() {
		uid := h.desired[name].UID
		h.record.mu.Lock()
		l := h.record.pods[uid]
		runs := h.record.runsOf(uid, "")
		if n := len(l.statuses); n > 0 && len(l.ends) == 0 && l.statuses[n-1].st.ObservedGeneration == h.desired[name].Generation {
			s := snapshot{uid: string(uid), runs: len(runs), statuses: n, last: l.statuses[n-1].st}
			quiet := h.record.now()-l.statuses[n-1].at > 6*time.Minute
			if d := h.desired[name].Spec.ActiveDeadlineSeconds; d != nil { // it does not pass during the restart
				end := l.specs[0].at + time.Duration(*d)*time.Second
				quiet = quiet && (end < h.record.now()-slack || end > h.record.now()+4*time.Minute)
			}
			if podspec.IsTerminalPhase(s.last.Phase) && h.faults.Strikes(runtimetest.Corrupt, "ListPodSandbox") {
				quiet = false // only the next agent finds a sandbox that was hidden when the pod was stopped
			}
			for _, c := range runs {
				quiet = quiet && h.record.now()-c.start > 6*time.Minute
				if c.ended {
					s.ended++
				}
			}
			if quiet {
				all[name] = s
			}
		}
		h.record.mu.Unlock()
	}
	return all
}

// unchanged checks that these pods have not changed.
func (h *history) unchanged(was map[string]snapshot) {
	for name, s := range was {
		l := h.record.pods[h.desired[name].UID]
		runs := h.record.runsOf(l.uid, "")
		if slices.ContainsFunc(runs, func(c *run) bool { // it has exited by itself meanwhile
			_, stopped := c.firstStop()
			return c.ended && !stopped && c.start < h.record.now()-6*time.Minute && c.end > h.record.now()-4*time.Minute
		}) {
			continue
		}
		if len(runs) != s.runs {
			h.broke("after a restart, containers of %s started", s.uid)
		}
		for i := s.statuses; i < len(l.statuses); i++ {
			if len(runs) == s.runs && !equality.Semantic.DeepEqual(l.statuses[i].st, s.last) {
				h.broke("after a restart, the status of %s changed at %v:\n%s\n%s", s.uid, l.statuses[i].at, asJSON(s.last), asJSON(l.statuses[i].st))
			}
		}
	}
}

func asJSON(v any) string {
	data, _ := json.Marshal(v)
	return string(data)
}

// rebooted reports whether the machine was restarted between two runs.
func (k *rules) rebooted(a, b *run) bool {
	return slices.ContainsFunc(k.h.reboots, func(at time.Duration) bool { return a.start <= at && at <= b.start })
}
