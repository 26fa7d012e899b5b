package scenario

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// slack is how much later than at once something may happen: a retry and a resync.
const slack = 15 * time.Second

// rules checks what has happened to one pod against the API.
type rules struct {
	h   *history
	r   *record
	l   *life
	pod *corev1.Pod // as it was put first
	all []*run
}

// checkRules checks the whole history.
func (h *history) checkRules() {
	for _, uid := range h.record.uids() {
		k := h.rules(uid)
		if !h.faults.Lies() {
			k.overlaps()
			k.order()
			k.restarts()
			k.stops()
			k.truth()
		}
		if h.faults == nil {
			k.sidecars()
			k.ends()
			k.late()
		}
	}
}

func (h *history) rules(uid types.UID) *rules {
	l := h.record.pods[uid]
	return &rules{h, h.record, l, l.specs[0].pod, h.record.runsOf(uid, "")}
}

// broke fails the test, with a line in the history.
func (h *history) broke(format string, args ...any) {
	h.record.did("VIOLATION "+format, args...)
	h.t.Errorf(format, args...)
}

func (k *rules) script(c *run, key string) string {
	return k.pod.Annotations[c.name+"."+simulated.ScriptPrefix+key]
}

func (k *rules) seconds(c *run, key string) time.Duration {
	d, _ := time.ParseDuration(k.script(c, key))
	return d
}

// overlaps: no container runs twice at once.
func (k *rules) overlaps() {
	for i, a := range k.all {
		for _, b := range k.all[i+1:] {
			if a.name == b.name && (!a.ended || b.start < a.end) {
				k.h.broke("%s starts while %s runs", b, a)
			}
			if a.name == b.name && b.attempt <= a.attempt && !k.rebooted(a, b) {
				k.h.broke("%s starts after %s", b, a)
			}
		}
	}
}

// restartAlls returns when exits restarted all containers.
func (k *rules) restartAlls() (at []time.Duration) {
	for _, c := range k.all {
		spec := containerOf(k.pod, c.name)
		if c.ended && spec != nil && podspec.RestartRuleAction(spec, c.code) == corev1.ContainerRestartRuleActionRestartAllContainers {
			at = append(at, c.end)
		}
	}
	return at
}

// lag returns how long after the begin of a sync a container may start that was planned then: after the pulls.
func (k *rules) lag() time.Duration {
	d := 5 * time.Second
	for _, s := range k.l.specs {
		if slices.ContainsFunc(mainContainers(s.pod), func(c *corev1.Container) bool { return c.Image == "slow:1" }) {
			d += 20 * time.Second
			break
		}
	}
	return d
}

// since returns the runs in the sandbox of c that were before it, since the last restart of all containers.
// A start within less than late after that may not have known of it, nor that of a regular container before all others.
func (k *rules) since(c *run, late time.Duration) (before []*run) {
	from := time.Duration(-1)
	for _, at := range k.restartAlls() {
		if at <= c.start-late {
			from = max(from, at)
		}
	}
	for _, o := range k.all {
		if o == c {
			return before
		}
		unaware := from >= 0 && len(before) == 0 && o.name[0] == 'c' && o.start <= from+k.lag()
		if o.sandbox == c.sandbox && o.start >= from && !unaware {
			before = append(before, o)
		}
	}
	return before
}

func (c *run) succeeded() bool { return c.ended && c.code == 0 && !c.oom }

// order: init containers run one by one, and regular ones after them.
func (k *rules) order() {
	for _, c := range k.all {
		if c.name[0] == 'e' {
			continue
		}
		if problem := k.outOfOrder(c, k.since(c, 0)); problem != "" && k.outOfOrder(c, k.since(c, k.lag())) != "" {
			k.h.broke("%s %s", c, problem)
		}
	}
}

// outOfOrder returns why a container starts too early or late after these.
func (k *rules) outOfOrder(c *run, before []*run) string {
	if slices.ContainsFunc(before, func(o *run) bool { return o.name[0] == 'c' }) { // the pod is initialized
		if c.name[0] == 'i' {
			return "starts after regular containers"
		}
		return ""
	}
	for i := range k.pod.Spec.InitContainers {
		spec := &k.pod.Spec.InitContainers[i]
		if spec.Name == c.name {
			break
		}
		done := func(o *run) bool { return o.name == spec.Name && o.succeeded() && o.end <= c.start }
		if podspec.IsSidecar(spec) {
			done = func(o *run) bool {
				return o.name == spec.Name && (spec.StartupProbe == nil || o.start+k.seconds(o, "listen-after") <= c.start)
			}
		}
		if !slices.ContainsFunc(before, done) {
			return "starts before " + spec.Name + " is done"
		}
	}
	if c.name[0] == 'i' && slices.ContainsFunc(before, func(o *run) bool { return o.name == c.name && o.succeeded() }) {
		return "starts again after its success"
	}
	return ""
}

// changed reports whether the image or resources of the container changed in this time.
func (k *rules) changed(name string, from, to time.Duration) bool {
	a, b := containerOf(k.l.spec(from), name), containerOf(k.l.spec(to), name)
	return a.Image != b.Image || a.Resources.Requests.Memory().Cmp(*b.Resources.Requests.Memory()) != 0
}

// restarts: a container is restarted if its policy says so, and after its back-off.
func (k *rules) restarts() {
	for _, c := range mainContainers(k.pod) {
		runs := k.r.runsOf(k.l.uid, c.Name)
		step, most := 0, 0 // of the back-off, at least and at most
		for i := 1; i < len(runs); i++ {
			a, b := runs[i-1], runs[i]
			all := slices.ContainsFunc(k.restartAlls(), func(at time.Duration) bool { return at >= a.start && at <= b.start })
			image := containerOf(k.l.spec(b.start), c.Name).Image != a.image
			all = all || k.rebooted(a, b)
			newSandbox := a.sandbox != b.sandbox
			initRan := newSandbox && slices.ContainsFunc(k.all, func(o *run) bool { return o.sandbox == a.sandbox && o.name[0] == 'c' })
			switch {
			case all || image || a.name[0] == 'i' && newSandbox:
			case newSandbox && !initRan && a.name[0] != 'i':
			case podspec.RestartRuleAction(c, a.code) != "":
			case podspec.RestartsByPolicy(k.pod, c, a.code != 0 || a.oom):
			case (k.probeFails(a) || k.failsAfterEnd(a, b.start)) && podspec.RestartsByPolicy(k.pod, c, true):
			default:
				k.h.broke("%s starts after %s ended with %d", b, a, a.code)
			}
			if a.end-a.start >= 10*time.Minute {
				step, most = 0, 0
			}
			delay, longest := backOff(step), backOff(most)
			switch {
			case all || image || k.changed(c.Name, a.start, b.start) || newSandbox:
				step, most = 0, most+1
			default:
				if b.start > a.end+longest+90*time.Second && !k.h.agentAway(a.end, b.start) {
					k.h.broke("%s starts %v after the end of %s, back-off %v", b, b.start-a.end, a, longest)
				}
				if b.start < a.end+delay-time.Second {
					k.h.broke("%s starts %v after the end of %s, back-off %v", b, b.start-a.end, a, delay)
				}
				step, most = step+1, most+1
			}
		}
	}
}

func backOff(step int) time.Duration {
	if step == 0 {
		return 0
	}
	return min(10*time.Second<<min(step-1, 10), 5*time.Minute)
}

// probeFails reports whether a liveness or startup probe of the run can fail.
func (k *rules) probeFails(c *run) bool {
	_, ok := k.failsFrom(c)
	return ok
}

// failsAfterEnd reports whether the liveness probe of a run that has ended can have failed since, while the inspection
// that would have shown the end was delayed. The run is killed then, as one that is unhealthy.
func (k *rules) failsAfterEnd(c *run, by time.Duration) bool {
	spec := containerOf(k.pod, c.name)
	if spec.LivenessProbe == nil || by < c.end+time.Duration(spec.LivenessProbe.FailureThreshold-1)*time.Duration(spec.LivenessProbe.PeriodSeconds)*time.Second {
		return false
	}
	return k.h.strike([]runtimetest.FaultKind{runtimetest.Delay, runtimetest.Hang}, "ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus", "StreamPodSandboxes", "StreamContainers")
}

// strike reports whether a fault of one of these kinds applies to one of the calls.
func (h *history) strike(kinds []runtimetest.FaultKind, rpcs ...string) bool {
	return slices.ContainsFunc(kinds, func(kind runtimetest.FaultKind) bool {
		return slices.ContainsFunc(rpcs, func(rpc string) bool { return h.faults.Strikes(kind, rpc) })
	})
}

// failsFrom returns from when on a probe has failed, as early as that may be.
func (k *rules) failsFrom(c *run) (time.Duration, bool) {
	spec := containerOf(k.pod, c.name)
	if spec == nil {
		return 0, false
	}
	listen := k.seconds(c, "listen-after")
	earliest, ok := time.Duration(1<<62), false
	least := func(p *corev1.Probe, from time.Duration) {
		at := max(from, time.Duration(p.InitialDelaySeconds)*time.Second)
		at += time.Duration(p.FailureThreshold-1) * time.Duration(p.PeriodSeconds) * time.Second
		earliest, ok = min(earliest, c.start+at), true
	}
	if p := spec.StartupProbe; p != nil && listen > 0 {
		p := *p
		at := time.Duration(p.InitialDelaySeconds)*time.Second + time.Duration(p.FailureThreshold-1)*time.Duration(p.PeriodSeconds)*time.Second
		if at < listen {
			least(&p, 0)
		}
	}
	if p := spec.LivenessProbe; p != nil {
		if at, _, found := strings.Cut(k.script(c, "http-status"), "="); found {
			d, _ := time.ParseDuration(at)
			least(p, d)
		} else if listen > 0 && spec.StartupProbe == nil {
			least(p, 0)
		}
	}
	return earliest, ok
}

// done returns whether all regular containers had ended for good, or an init container, or the pod was past its deadline.
func (k *rules) done(at time.Duration) bool {
	pod := k.l.spec(at)
	if d := pod.Spec.ActiveDeadlineSeconds; d != nil && at >= k.l.specs[0].at.Truncate(time.Second)+time.Duration(*d)*time.Second { // a status has full seconds
		return true
	}
	ended := func(name string) (*run, bool) {
		var last *run
		for _, c := range k.all {
			if c.name == name && c.start <= at {
				last = c
			}
		}
		spec := containerOf(pod, name)
		return last, last != nil && last.ended && last.end <= at && podspec.RestartRuleAction(spec, last.code) == "" &&
			(last.name[0] == 'i' && last.succeeded() || !podspec.RestartsByPolicy(pod, spec, last.code != 0 || last.oom || last.stoppedAfter(k.failsFrom(last))))
	}
	finished := true
	for i := range pod.Spec.Containers {
		_, ok := ended(pod.Spec.Containers[i].Name)
		finished = finished && ok
	}
	for i := range pod.Spec.InitContainers {
		if last, ok := ended(pod.Spec.InitContainers[i].Name); ok && !last.succeeded() {
			finished = true
		}
	}
	return finished
}

// mainContainers returns the containers of the spec that are not ephemeral.
func mainContainers(pod *corev1.Pod) (all []*corev1.Container) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			all = append(all, &list[i])
		}
	}
	return all
}
