package status

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// phase fills the phase with its reason and message.
func (g *generator) phase(st *corev1.PodStatus) {
	if terminal(g.former.Phase) {
		st.Phase, st.Reason, st.Message = g.former.Phase, g.former.Reason, g.former.Message
		return
	}
	final := g.final()
	st.Phase = phaseOf(g.pod, st, final, g.again)
	if e := g.report.Ending; e != nil && e.Reason != "" && final {
		st.Phase, st.Reason, st.Message = corev1.PodFailed, e.Reason, e.Message
	}
	if terminal(st.Phase) && g.report.Seen.Running() {
		// An ephemeral container, or one that is on its way down. What came
		// before is told on until it is gone.
		st.Phase, st.Reason, st.Message = corev1.PodRunning, "", ""
		if g.former.Phase != "" {
			st.Phase = g.former.Phase
		}
	}
	if b := g.report.Blocked; b != nil && !terminal(st.Phase) {
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
	return phaseOf(pod, &st, final, func(string) bool { return false })
}

// phaseOf is Phase where again tells which containers that ended run again for a
// restart of all.
func phaseOf(pod *corev1.Pod, st *corev1.PodStatus, final bool, again func(name string) bool) corev1.PodPhase {
	init := countInit(pod, st, again)
	main := countMain(pod, st, again)
	initialized := anyRegularStarted(st)
	switch {
	case init.failed:
		return corev1.PodFailed
	case final:
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

func countInit(pod *corev1.Pod, st *corev1.PodStatus, again func(string) bool) initCounts {
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
		case end == nil, again(c.Name):
			n.pending++
		case end.ExitCode == 0 && cs.State.Terminated != nil:
		case end.ExitCode == 0:
			n.pending++ // it runs again: the sandbox is a new one
		case mayRestart(pod, c, end.ExitCode):
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

func countMain(pod *corev1.Pod, st *corev1.PodStatus, again func(string) bool) mainCounts {
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
			if end.ExitCode == 0 {
				n.succeeded++
			}
			if mayRestart(pod, c, end.ExitCode) || again(c.Name) {
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

func find(list []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}
