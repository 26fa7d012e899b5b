package scenario

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// settled checks that the reported statuses are what is true.
func (h *history) settled(when string) {
	now := h.record.now()
	for _, name := range h.names() {
		pod := h.desired[name]
		l := h.record.pods[pod.UID]
		if len(l.statuses) == 0 {
			h.broke("%s: no status of %s", when, pod.UID)
			continue
		}
		h.rules(pod.UID).reported(when, &l.statuses[len(l.statuses)-1].st, now)
	}
}

// reported checks a status.
func (k *rules) reported(when string, st *corev1.PodStatus, now time.Duration) {
	pod := k.l.spec(now)
	running := 0
	all := map[string]corev1.ContainerStatus{}
	for c := range podspec.ContainerStatuses(st) {
		all[c.Name] = *c
	}
	for _, c := range mainContainers(pod) {
		runs := k.r.runsOf(k.l.uid, c.Name)
		s, ok := all[c.Name]
		if len(runs) == 0 {
			if s.State.Waiting == nil && (s.State.Terminated == nil || s.State.Terminated.Reason != "ContainerStatusUnknown") {
				k.h.broke("%s: %s of %s never ran: %+v", when, c.Name, k.l.uid, s.State)
			}
			continue
		}
		last := runs[len(runs)-1]
		if !last.ended {
			running++
		}
		if !ok {
			k.h.broke("%s: no status of %s", when, last)
			continue
		}
		if last.lost || len(runs) > 1 && runs[len(runs)-2].lost || k.rebooted(runs[0], last) {
			continue // the runtime has forgotten it
		}
		if k.lied(last) || len(runs) > 1 && k.lied(runs[len(runs)-2]) {
			continue
		}
		if now-last.start < 5*time.Second || last.ended && now-last.end < 5*time.Second {
			continue
		}
		if int(s.RestartCount) != last.attempt && s.State.Waiting == nil {
			k.h.broke("%s: restarts of %s are %d", when, last, s.RestartCount)
		}
		switch {
		case !last.ended && s.State.Running == nil:
			k.h.broke("%s: %s runs: %+v", when, last, s.State)
		case last.ended && s.State.Running != nil:
			k.h.broke("%s: %s has ended, and is Running", when, last)
		case last.ended && s.State.Terminated != nil && s.State.Terminated.ExitCode != last.code:
			k.h.broke("%s: %s has ended with %d: %+v", when, last, last.code, s.State.Terminated)
		case last.ended && s.State.Waiting != nil && (s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != last.code):
			k.h.broke("%s: %s has ended with %d: last %+v", when, last, last.code, s.LastTerminationState.Terminated)
		}
		if !last.ended && len(runs) > 1 {
			if t := s.LastTerminationState.Terminated; t == nil || t.ExitCode != runs[len(runs)-2].code {
				k.h.broke("%s: last state of %s, %v", when, last, t)
			}
		}
		k.ready(when, last, &s, now)
		k.hasToRun(when, last, now)
	}
	for i := range pod.Spec.EphemeralContainers {
		name := pod.Spec.EphemeralContainers[i].Name
		for _, c := range k.r.runsOf(k.l.uid, name) {
			if !c.ended {
				running++
			}
		}
	}
	k.phase(when, st, now, running)
}

// lied reports whether a corrupted inspection may have shown another end of the run.
func (k *rules) lied(c *run) bool {
	return c.ended && c.end <= k.h.faultsEnd && k.h.faults.Strikes(runtimetest.Corrupt, "ContainerStatus")
}

// hasToRun: a container that has to run does.
func (k *rules) hasToRun(when string, last *run, now time.Duration) {
	if !last.ended || now-last.end < 6*time.Minute || k.done(now) {
		return
	}
	spec := containerOf(k.l.spec(now), last.name)
	if len(k.l.ends) > 0 {
		return
	}
	before := k.r.runsOf(k.l.uid, "")
	current := before[len(before)-1].sandbox
	if last.sandbox != current || last.name[0] == 'i' {
		return
	}
	if spec.Image == "missing:1" {
		return
	}
	if podspec.RestartRuleAction(spec, last.code) != "" || podspec.RestartsByPolicy(k.l.spec(now), spec, last.code != 0 || last.oom) {
		k.h.broke("%s: %s was not restarted since %v", when, last, last.end)
	}
}

// ready checks the fields ready and started.
func (k *rules) ready(when string, c *run, s *corev1.ContainerStatus, now time.Duration) {
	spec := containerOf(k.l.spec(now), c.name)
	if c.name[0] == 'i' {
		if s.Ready != c.succeeded() {
			k.h.broke("%s: %s ready %v", when, c, s.Ready)
		}
		return
	}
	listen := k.seconds(c, "listen-after")
	age := now - c.start
	want, certain := !c.ended, true
	started := !c.ended
	if !c.ended && age < 2*time.Minute {
		certain = false
	}
	if !c.ended && spec.StartupProbe != nil && age < listen+2*time.Minute {
		certain = false
	}
	if !c.ended && spec.ReadinessProbe != nil {
		switch k.script(c, "grpc-status") {
		case "0s=NOT_SERVING,30s=SERVING":
			certain = certain && age > 3*time.Minute
		case "1m=NOT_SERVING,2m=SERVING":
			certain = certain && age > 4*time.Minute
		case "5m=NOT_SERVING":
			want = age < 5*time.Minute
			certain = certain && (age < 5*time.Minute || age > 7*time.Minute)
		}
	}
	if !certain {
		return
	}
	if s.Ready != want {
		k.h.broke("%s: %s ready %v", when, c, s.Ready)
	}
	if (s.Started != nil && *s.Started) != started {
		k.h.broke("%s: %s started %v", when, c, *s.Started)
	}
}

// phase checks the phase and the conditions.
func (k *rules) phase(when string, st *corev1.PodStatus, now time.Duration, running int) {
	pod := k.l.spec(now)
	if (st.Phase == corev1.PodSucceeded || st.Phase == corev1.PodFailed) && running > 0 {
		k.h.broke("%s: %s %s with %d running containers", when, k.l.uid, st.Phase, running)
	}
	if slices.ContainsFunc(k.all, k.lied) {
		return
	}
	done := k.done(now - slack)
	final := st.Phase == corev1.PodSucceeded || st.Phase == corev1.PodFailed
	if final && !k.done(now) && len(k.l.ends) == 0 || done && !final && len(k.l.ends) == 0 {
		k.h.broke("%s: %s done %v, phase %s", when, k.l.uid, done, st.Phase)
	}
	if d := pod.Spec.ActiveDeadlineSeconds; d != nil && now > k.l.specs[0].at+time.Duration(*d)*time.Second+time.Minute && !final {
		k.h.broke("%s: %s is past its deadline", when, k.l.uid)
	}
	want := corev1.PodSucceeded
	waiting, regular := 0, 0
	for i := range pod.Spec.Containers {
		runs := k.r.runsOf(k.l.uid, pod.Spec.Containers[i].Name)
		if len(runs) == 0 {
			waiting++
			want = corev1.PodFailed
			continue
		}
		last := runs[len(runs)-1]
		if last.code != 0 {
			want = corev1.PodFailed
		}
		if !last.ended {
			regular++
		}
	}
	if st.Reason != "" {
		want = corev1.PodFailed
	}
	if final && st.Phase != want {
		k.h.broke("%s: phase of %s is %s, and not %s", when, k.l.uid, st.Phase, want)
	}
	if !final && waiting == 0 && regular > 0 && st.Phase != corev1.PodRunning {
		k.h.broke("%s: phase of %s is %s, and not Running", when, k.l.uid, st.Phase)
	}
	if !final && waiting > 0 && st.Phase != corev1.PodPending {
		k.h.broke("%s: phase of %s is %s, and not Pending", when, k.l.uid, st.Phase)
	}
}
