package status

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// phase fills the phase with its reason and message.
func (g *generator) phase(st *corev1.PodStatus) {
	if terminal(g.previous.Phase) {
		st.Phase, st.Reason, st.Message = g.previous.Phase, g.previous.Reason, g.previous.Message
		return
	}
	final := g.final()
	st.Phase = g.progress(final).phase(g.pod, st)
	if e := g.report.Termination; e != nil && e.Reason != "" && final {
		st.Phase, st.Reason, st.Message = corev1.PodFailed, e.Reason, e.Message
	}
	if terminal(st.Phase) && g.report.Observed.CouldHaveRunningContainers() {
		// An ephemeral container, or one that is on its way down. Until it is
		// gone the pod runs, unless its turn to run had not come.
		st.Phase, st.Reason, st.Message = corev1.PodPending, "", ""
		if anyRegularStarted(st) || g.previous.Phase == corev1.PodRunning {
			st.Phase = corev1.PodRunning
		}
	}
	if b := g.report.Blocked; b != nil { // what has ended of it is no result: it starts over
		st.Phase, st.Reason, st.Message = corev1.PodPending, b.Reason, b.Message
		if st.Reason == "" {
			st.Reason = reasonBlocked
		}
	}
}

// Phase returns the phase that the container statuses in st call for, whether
// or not a container that they do not decide (an ephemeral one, a sidecar)
// still runs. final says that nothing will be started again, as when the pod
// ends: then the answer is Succeeded or Failed. It is pure.
//
// A rule that restarts all containers is not looked for in st, which does not say
// what became of it: what was ended for it counts as ended.
func Phase(pod *corev1.Pod, st corev1.PodStatus, final bool) corev1.PodPhase {
	none := func(string) bool { return false }
	return progress{final: final, again: none, created: none}.phase(pod, &st)
}

// progress is what decides a phase besides the statuses of the containers.
type progress struct {
	final    bool                   // nothing will be started again
	initDone bool                   // the init containers are done, whatever their statuses say
	again    func(name string) bool // one that ended runs again for a restart of all
	created  func(name string) bool // its newest attempt was created and has not run
}

func (g *generator) progress(final bool) progress {
	return progress{final: final, initDone: g.initDone, again: g.restartsWithAll, created: g.created}
}

// created reports whether the newest attempt at running a container was created
// and has not run.
func (g *generator) created(name string) bool {
	newest, _ := attempts(&g.report.Observed, name)
	return newest != nil && newest.State == runtime.Created
}

func (p progress) phase(pod *corev1.Pod, st *corev1.PodStatus) corev1.PodPhase {
	init := p.countInit(pod, st)
	main := p.countMain(pod, st)
	initialized := anyRegularStarted(st)
	switch {
	case init.failed:
		return corev1.PodFailed
	case p.final:
		// Nothing comes any more: only success everywhere is success.
		if main.stopped > 0 && main.succeeded == len(pod.Spec.Containers) {
			return corev1.PodSucceeded
		}
		return corev1.PodFailed
	case init.pending > 0, init.pendingSidecars > 0 && !initialized, main.waiting+init.waitingSidecars > 0:
		return corev1.PodPending
	case main.unknown+init.unknownSidecars > 0:
		return corev1.PodPending
	case main.running+init.runningSidecars > 0:
		return corev1.PodRunning
	case main.stopped == 0:
		return corev1.PodPending
	case main.restartable > 0:
		return corev1.PodRunning
	case main.succeeded == main.stopped:
		return corev1.PodSucceeded
	default:
		return corev1.PodFailed
	}
}

// initCounts counts init containers and sidecars by what they mean for the
// phase.
type initCounts struct {
	failed                                                             bool // one failed for good
	pending                                                            int  // init containers yet to succeed
	pendingSidecars, runningSidecars, waitingSidecars, unknownSidecars int
}

func (p progress) countInit(pod *corev1.Pod, st *corev1.PodStatus) initCounts {
	var n initCounts
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		cs := find(st.InitContainerStatuses, c.Name)
		if podspec.IsSidecar(c) {
			n.sidecar(cs)
			continue
		}
		end := ended(cs)
		switch {
		case end == nil, p.again(c.Name):
			n.pending++
		case p.initDone:
		case initSucceeded(end) && cs.State.Terminated != nil:
		case initSucceeded(end):
			n.pending++ // it runs again: the sandbox is a new one
		case mayRestart(pod, c, end):
			n.pending++
		default:
			n.failed = true
		}
	}
	return n
}

// sidecar counts a sidecar. One that ended is to be restarted at once and says
// nothing about the pod.
func (n *initCounts) sidecar(cs *corev1.ContainerStatus) {
	switch {
	case cs == nil:
		n.pendingSidecars++
		n.unknownSidecars++
	case cs.State.Running != nil:
		if cs.Started == nil || !*cs.Started {
			n.pendingSidecars++
		}
		n.runningSidecars++
	case ended(cs) != nil:
	case cs.State.Waiting != nil:
		n.pendingSidecars++
		n.waitingSidecars++
	default:
		n.pendingSidecars++
		n.unknownSidecars++
	}
}

// mainCounts counts regular containers by what they mean for the phase.
type mainCounts struct {
	running, waiting, unknown, stopped int
	succeeded, restartable             int // of the stopped
}

func (p progress) countMain(pod *corev1.Pod, st *corev1.PodStatus) mainCounts {
	var n mainCounts
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		cs := find(st.ContainerStatuses, c.Name)
		end := ended(cs)
		switch {
		case cs == nil:
			n.unknown++
		case cs.State.Running != nil:
			n.running++
		case end != nil:
			n.stopped++
			// What was created after an end was to run once more: the end before it
			// is no success of the pod's.
			created := p.created(c.Name)
			if end.ExitCode == 0 && !created {
				n.succeeded++
			}
			if created || mayRestart(pod, c, end) || p.again(c.Name) {
				n.restartable++
			}
		case cs.State.Waiting != nil:
			n.waiting++
		default:
			n.unknown++
		}
	}
	return n
}

// ended returns how a container that is not running ended last, or nil when it
// runs or has never ended.
func ended(cs *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	switch {
	case cs == nil || cs.State.Running != nil:
		return nil
	case cs.State.Terminated != nil:
		return cs.State.Terminated
	default:
		return cs.LastTerminationState.Terminated
	}
}

// anyRegularStarted reports whether a regular container has ever started, which
// means that the pod was initialized once.
func anyRegularStarted(st *corev1.PodStatus) bool {
	for i := range st.ContainerStatuses {
		cs := &st.ContainerStatuses[i]
		if cs.State.Running != nil || ended(cs) != nil {
			return true
		}
	}
	return false
}

func isReady(list []corev1.ContainerStatus, name string) bool {
	cs := find(list, name)
	return cs != nil && cs.Ready
}

func isStarted(list []corev1.ContainerStatus, name string) bool {
	cs := find(list, name)
	return cs != nil && cs.Started != nil && *cs.Started
}

func find(list []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}
