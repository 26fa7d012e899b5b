package status

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// phase sets the phase with its reason and message.
func (g *generator) phase(st *corev1.PodStatus) {
	if podspec.IsTerminalPhase(g.previous.Phase) {
		st.Phase, st.Reason, st.Message = g.previous.Phase, g.previous.Reason, g.previous.Message
		return
	}
	final := g.final()
	st.Phase = g.progress(final).phase(g.pod, st)
	if e := g.report.Termination; e != nil && e.Reason != "" && final {
		st.Phase, st.Reason, st.Message = corev1.PodFailed, e.Reason, e.Message
	}
	if g.report.Observed.CouldHaveRunningContainers() {
		// An ephemeral container, or one that is being stopped, has not exited.
		*st = notEnded(*st, g.previous)
	}
	if b := g.report.Blocked; b != nil { // terminations are not results: the pod starts from the beginning
		st.Phase, st.Reason, st.Message = corev1.PodPending, b.Reason, b.Message
		if st.Reason == "" {
			st.Reason = reasonBlocked
		}
	}
}

// notEnded returns a status whose phase is not terminal yet, unless the previous one was: the pod
// is Running, or Pending if no regular container had started.
func notEnded(st corev1.PodStatus, previous *corev1.PodStatus) corev1.PodStatus {
	if !podspec.IsTerminalPhase(st.Phase) || podspec.IsTerminalPhase(previous.Phase) {
		return st
	}
	st.Phase, st.Reason, st.Message = corev1.PodPending, "", ""
	if anyRegularStarted(&st) || previous.Phase == corev1.PodRunning {
		st.Phase = corev1.PodRunning
	}
	return st
}

// Phase returns the phase that follows from the container statuses in st. Containers
// that do not decide it (ephemeral containers, sidecars) may still run. final means
// that no container will be started again, as during a termination: then the result
// is Succeeded or Failed. It is pure.
//
// A rule that restarts all containers is ignored, because st does not contain its
// progress: containers that it stopped count as terminated.
func Phase(pod *corev1.Pod, st corev1.PodStatus, final bool) corev1.PodPhase {
	none := func(string) bool { return false }
	return progress{final: final, restarts: none, created: none, unhealthy: none}.phase(pod, &st)
}

// progress are the inputs of a phase besides the statuses of the containers.
type progress struct {
	final     bool                   // no container will be started again
	initDone  bool                   // the init containers have completed, even if their statuses are unknown
	begins    bool                   // no regular container was created in the present sandbox yet
	restarts  func(name string) bool // an exited container runs again for a restart of all
	created   func(name string) bool // its newest attempt was created and has not run
	unhealthy func(name string) bool // it exited because it was stopped, after its probe had failed
}

func (g *generator) progress(final bool) progress {
	return progress{
		final: final, initDone: g.initDone, begins: !g.initDone && (g.observed() || g.previous.Phase == corev1.PodPending),
		restarts: g.restartsWithAll, created: g.created, unhealthy: g.unhealthy,
	}
}

// created reports whether the newest attempt of a container was created and has not
// run.
func (g *generator) created(name string) bool {
	newest, _ := attempts(&g.report.Observed, name)
	return newest != nil && newest.State == runtime.Created
}

// unhealthy reports whether a liveness or startup probe of the newest container of a name has
// failed.
func (g *generator) unhealthy(name string) bool {
	newest, _ := attempts(&g.report.Observed, name)
	return newest != nil && g.report.Probes[newest.ID].IsUnhealthy()
}

func (p progress) phase(pod *corev1.Pod, st *corev1.PodStatus) corev1.PodPhase {
	init := p.countInit(pod, st)
	main := p.countMain(pod, st)
	done := main.stopped > 0 && main.stopped == len(pod.Spec.Containers) && main.restartable+init.runningSidecars == 0
	switch {
	case init.failed:
		return corev1.PodFailed
	case p.final, done: // done: init containers that were to run once more in a new sandbox do not count either
		// No container starts any more: the pod succeeded only if all did.
		if main.stopped > 0 && main.succeeded == len(pod.Spec.Containers) {
			return corev1.PodSucceeded
		}
		return corev1.PodFailed
	case init.pending > 0, main.waiting+init.waitingSidecars > 0, p.begins && init.unstartedSidecars > 0:
		return corev1.PodPending
	case main.running+init.runningSidecars > 0:
		return corev1.PodRunning
	case main.stopped == 0:
		return corev1.PodPending
	default: // all have stopped, and one of them is to be restarted
		return corev1.PodRunning
	}
}

// initCounts counts init containers and sidecars by their effect on the phase.
type initCounts struct {
	failed                           bool // one failed and is not restarted
	pending                          int  // init containers that have not succeeded yet
	runningSidecars, waitingSidecars int
	unstartedSidecars                int // of those that run
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
		case end == nil, p.restarts(c.Name):
			n.pending++
		case p.initDone:
		case initSucceeded(end) && cs.State.Terminated != nil:
		case initSucceeded(end):
			n.pending++ // it runs again, in a new sandbox
		case mayRestart(pod, c, end, false):
			n.pending++
		default:
			n.failed = true
		}
	}
	return n
}

// sidecar counts a sidecar. An exited one is restarted immediately and has no effect
// on the phase.
func (n *initCounts) sidecar(cs *corev1.ContainerStatus) {
	switch {
	case cs != nil && cs.State.Running != nil:
		n.runningSidecars++
		if cs.Started == nil || !*cs.Started {
			n.unstartedSidecars++
		}
	case ended(cs) == nil:
		n.waitingSidecars++
	}
}

// mainCounts counts regular containers by their effect on the phase.
type mainCounts struct {
	running, waiting, stopped int
	succeeded, restartable    int // of the stopped
}

func (p progress) countMain(pod *corev1.Pod, st *corev1.PodStatus) mainCounts {
	var n mainCounts
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		cs := find(st.ContainerStatuses, c.Name)
		end := ended(cs)
		switch {
		case cs != nil && cs.State.Running != nil:
			n.running++
		case end != nil:
			n.stopped++
			// A container that was created after a termination was to run once more:
			// the termination before it is not a success of the pod.
			created := p.created(c.Name)
			if end.ExitCode == 0 && !created {
				n.succeeded++
			}
			if created || mayRestart(pod, c, end, p.unhealthy(c.Name)) || p.restarts(c.Name) {
				n.restartable++
			}
		default:
			n.waiting++
		}
	}
	return n
}

// ended returns the last termination of a container that is not running. It is nil
// if the container runs or has never terminated.
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

// anyRegularStarted reports whether a regular container has ever started, so that
// the pod was initialized once.
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
