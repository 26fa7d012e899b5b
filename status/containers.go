package status

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Reasons, exit code and messages of the Kubernetes API for containers that wait and
// for containers whose termination was not observed.
const (
	reasonUnknown   = "ContainerStatusUnknown"
	reasonCreating  = "ContainerCreating"
	reasonPodInit   = "PodInitializing"
	reasonBlocked   = "Blocked"
	exitCodeUnknown = 137
	messageVanished = "The container could not be located when the pod was terminated"
	messagePassed   = "The container was removed from the runtime; it is assumed to have completed, because the pod has been initialized"
	reasonCompleted = "Completed"
	reasonError     = "Error"
	maxMessages     = 12 << 10 // bytes of all termination messages of a pod
)

// slot is one container of the pod spec.
type slot struct {
	kind runtime.ContainerType
	c    *corev1.Container
}

// specsOf returns the init containers or the regular ones, in the order of the spec.
func specsOf(pod *corev1.Pod, init bool) []slot {
	list, kind := pod.Spec.Containers, runtime.Regular
	if init {
		list, kind = pod.Spec.InitContainers, runtime.Init
	}
	out := make([]slot, len(list))
	for i := range list {
		out[i] = slot{kind, &list[i]}
		if init && podspec.IsSidecar(&list[i]) {
			out[i].kind = runtime.Sidecar
		}
	}
	return out
}

func ephemeralSpecs(pod *corev1.Pod) []slot {
	list := pod.Spec.EphemeralContainers
	out := make([]slot, len(list))
	for i := range list {
		out[i] = slot{runtime.Ephemeral, (*corev1.Container)(&list[i].EphemeralContainerCommon)}
	}
	return out
}

// containers returns the statuses of the given containers, in their order.
func (g *generator) containers(slots []slot) []corev1.ContainerStatus {
	if len(slots) == 0 {
		return nil
	}
	out := make([]corev1.ContainerStatus, 0, len(slots))
	for _, s := range slots {
		out = append(out, g.container(s))
	}
	return out
}

// byName sorts statuses as the kubelet does: kubectl shows the first problem in the
// list as that of the pod. Only init containers keep the order of the spec.
func byName(list []corev1.ContainerStatus) []corev1.ContainerStatus {
	slices.SortFunc(list, func(a, b corev1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// previousOf returns the previous status of a container, or nil.
func (g *generator) previousOf(s slot) *corev1.ContainerStatus {
	switch s.kind {
	case runtime.Ephemeral:
		return find(g.previous.EphemeralContainerStatuses, s.c.Name)
	case runtime.Init, runtime.Sidecar:
		return find(g.previous.InitContainerStatuses, s.c.Name)
	default:
		return find(g.previous.ContainerStatuses, s.c.Name)
	}
}

func (g *generator) container(s slot) corev1.ContainerStatus {
	previous := g.previousOf(s)
	if previous == nil {
		previous = &corev1.ContainerStatus{}
	}
	newest, previousAttempt := attempts(&g.report.Observed, s.c.Name)
	var cs corev1.ContainerStatus
	if newest != nil {
		cs = g.fromObserved(s, newest, previousAttempt, previous)
	} else {
		cs = g.fromPrevious(s, previous)
	}
	cs.Name = s.c.Name
	cs.RestartCount = max(cs.RestartCount, previous.RestartCount)
	g.overlayFailure(s, &cs)
	g.overlayEnd(s, &cs)
	g.health(s, newest, &cs, previous)
	g.containerResources(s, newest, &cs, previous)
	cs.AllocatedResourcesStatus = previous.AllocatedResourcesStatus
	if list, ok := g.report.Resources[s.c.Name]; ok {
		cs.AllocatedResourcesStatus = list
	}
	cs.VolumeMounts = g.volumeMounts(s.c)
	return cs
}

// attempts returns the newest attempt of a container and the one before it. Either
// may be nil.
func attempts(observed *runtime.Pod, name string) (newest, previousAttempt *runtime.Container) {
	for i := range observed.Containers {
		c := &observed.Containers[i]
		switch {
		case c.Name != name:
		case newest == nil:
			newest = c
		default:
			return newest, c
		}
	}
	return newest, nil
}

// fromObserved returns the status of a container that is in the runtime.
func (g *generator) fromObserved(s slot, c, previousAttempt *runtime.Container, previous *corev1.ContainerStatus) corev1.ContainerStatus {
	id := g.containerID(c.ID)
	same := previous.ContainerID == id
	cs := corev1.ContainerStatus{
		RestartCount: int32(min(c.Attempt, 1<<31-1)),
		Image:        c.Image,
		ImageID:      c.ImageID,
		ContainerID:  id,
		State:        g.state(s, c),
	}
	if cs.Image == "" {
		cs.Image = s.c.Image
	}
	if c.User != nil {
		cs.User = c.User
	} else if same {
		cs.User = previous.User
	}
	if c.StopSignal != "" {
		cs.StopSignal = &c.StopSignal
	} else if same {
		cs.StopSignal = previous.StopSignal
	}
	if !g.observed() && same {
		// A listing has neither times nor exit codes.
		cs.ImageID, cs.State, cs.LastTerminationState = previous.ImageID, previous.State, previous.LastTerminationState
		return cs
	}
	if same {
		g.keepKnownEnd(&cs, previous)
	}
	cs.LastTerminationState.Terminated = g.lastEnd(&cs, previousAttempt, previous, same)
	return cs
}

// keepKnownEnd keeps a reported termination. One that was reported as lost gives way
// to the one that the runtime reports.
func (g *generator) keepKnownEnd(cs, previous *corev1.ContainerStatus) {
	known := previous.State.Terminated
	if known == nil {
		known = previous.LastTerminationState.Terminated
		if known == nil || known.ContainerID != cs.ContainerID {
			// No termination was reported. A container that ran and that the
			// runtime has lost track of has terminated now.
			if previous.State.Running != nil && cs.State.Waiting != nil {
				cs.State = lostContainer(cs.ContainerID, previous.State.Running)
			}
			return
		}
	}
	if cs.State.Running != nil || (lostEnd(known) && cs.State.Terminated != nil) {
		return
	}
	cs.State = corev1.ContainerState{Terminated: known}
}

// lastEnd returns the termination of the attempt before this one: the later of the
// observed and the reported one.
func (g *generator) lastEnd(
	cs *corev1.ContainerStatus, previousAttempt *runtime.Container, previous *corev1.ContainerStatus, same bool,
) *corev1.ContainerStateTerminated {
	known := previous.LastTerminationState.Terminated
	switch {
	case same:
	case previous.ContainerID == "":
		// It never ran, or its termination was inferred and belongs to no attempt.
	case previous.State.Terminated != nil:
		known = previous.State.Terminated
	case previous.State.Running != nil:
		known = lostContainer(previous.ContainerID, previous.State.Running).Terminated
	}
	if known != nil && known.ContainerID == cs.ContainerID && (cs.State.Running == nil || lostEnd(known)) {
		known = nil // it is that of this attempt, reported while it waited for a restart or was lost
	}
	if previousAttempt == nil || previousAttempt.State != runtime.Exited {
		return known
	}
	observed := g.terminated(previousAttempt)
	switch {
	case known == nil, lostEnd(known):
		return observed
	case known.ContainerID == observed.ContainerID, known.FinishedAt.After(observed.FinishedAt.Time):
		return known
	default:
		return observed
	}
}

// fromPrevious returns the status of a container that is not in the runtime.
func (g *generator) fromPrevious(s slot, previous *corev1.ContainerStatus) corev1.ContainerStatus {
	cs := *previous
	switch {
	case g.report.Blocked != nil && g.observed():
		// It starts from the beginning: its termination in the stopped pod is not a result.
		cs = corev1.ContainerStatus{RestartCount: previous.RestartCount, State: g.waiting(s)}
	case s.kind == runtime.Init && g.initDone:
		g.passed(&cs, previous)
	case previous.State.Terminated != nil:
	case previous.State.Running != nil && g.observed():
		cs.State = lostContainer(previous.ContainerID, previous.State.Running)
	case previous.State.Running != nil:
	default:
		cs.State = g.waiting(s)
		cs.Image, cs.ImageID = s.c.Image, ""
		if cs.LastTerminationState.Terminated == nil {
			cs.ContainerID = ""
		}
	}
	if cs.Image == "" {
		cs.Image = s.c.Image
	}
	return cs
}

// passed reports an init container that is not in the runtime any more as completed,
// although its termination was not observed: a regular container has started since.
func (g *generator) passed(cs, previous *corev1.ContainerStatus) {
	end := previous.State.Terminated
	switch {
	case end == nil:
	case initSucceeded(end):
		return
	case !lostEnd(end):
		cs.LastTerminationState = previous.State // it ran once more
	}
	// It is unknown which attempt completed.
	cs.ContainerID = ""
	cs.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reasonCompleted, Message: messagePassed}}
}

// overlayFailure reports a container that should run as waiting, with the reason of
// the failure. Its termination becomes the last one.
func (g *generator) overlayFailure(s slot, cs *corev1.ContainerStatus) {
	f := g.report.Failures[s.c.Name]
	if f.Reason == "" || cs.State.Running != nil || g.final() {
		switch {
		case cs.State.Waiting != nil && g.report.Blocked != nil:
			cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonBlocked}
		case !g.final() && g.restartsAsFailed(s, cs.State.Terminated):
			cs.LastTerminationState, cs.State = cs.State, g.waiting(s)
		case !g.final() && g.wasBlocked(s, cs.State.Terminated):
			cs.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonBlocked}}
		}
		return
	}
	if end := cs.State.Terminated; end != nil {
		if s.kind == runtime.Ephemeral || !mayRestart(g.pod, s.c, end, g.unhealthy(s.c.Name)) && !g.restartsWithAll(s.c.Name) && !g.runsOnceMore(s) {
			return
		}
		cs.LastTerminationState = cs.State
	}
	cs.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}}
}

// overlayEnd reports the last termination of a container instead of waiting if no
// container of the pod starts again. A container that should have run and was never
// observed is reported as lost, as in the kubelet.
func (g *generator) overlayEnd(s slot, cs *corev1.ContainerStatus) {
	last := cs.LastTerminationState.Terminated
	switch {
	case !g.final() || cs.State.Waiting == nil:
		return
	case last == nil:
		if g.shouldHaveRun(s) {
			cs.State = lostContainer(cs.ContainerID, &corev1.ContainerStateRunning{})
		}
		return
	}
	cs.State, cs.LastTerminationState = corev1.ContainerState{Terminated: last}, corev1.ContainerState{}
	if last.ContainerID != "" {
		cs.ContainerID = last.ContainerID // a container that was created since never ran
	}
}

// state returns the observed state of one attempt.
func (g *generator) state(s slot, c *runtime.Container) corev1.ContainerState {
	switch c.State {
	case runtime.Running:
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: stamp(c.Started)}}
	case runtime.Exited:
		return corev1.ContainerState{Terminated: g.terminated(c)}
	default:
		return g.waiting(s)
	}
}

func (g *generator) terminated(c *runtime.Container) *corev1.ContainerStateTerminated {
	reason := c.Reason
	switch {
	case reason != "":
	case c.ExitCode == 0:
		reason = reasonCompleted
	default:
		reason = reasonError
	}
	return &corev1.ContainerStateTerminated{
		ExitCode:    c.ExitCode,
		Reason:      reason,
		Message:     g.lastWords(c.Message),
		StartedAt:   stamp(c.Started),
		FinishedAt:  stamp(c.Finished),
		ContainerID: g.containerID(c.ID),
	}
}

// lastWords truncates a container's termination message. As in the kubelet, the
// messages of a pod have 12 KiB together, in equal parts. The end is kept, because
// that is where the error is.
func (g *generator) lastWords(message string) string {
	spec := &g.pod.Spec
	room := maxMessages / max(len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers), 1)
	if len(message) <= room {
		return message
	}
	return strings.ToValidUTF8(message[len(message)-room:], "") // without a partial character
}

// waiting is the state of a container that has not started. The API has a different
// reason for a pod with init containers.
func (g *generator) waiting(s slot) corev1.ContainerState {
	reason := reasonCreating
	if len(g.pod.Spec.InitContainers) > 0 && s.kind != runtime.Ephemeral {
		reason = reasonPodInit
	}
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

// containerID is an id in the format of the API.
func (g *generator) containerID(id string) string {
	if g.env.RuntimeName == "" {
		return id
	}
	return g.env.RuntimeName + "://" + id
}

// lostContainer is the state of a container that ran and whose termination was not
// observed.
func lostContainer(id string, ran *corev1.ContainerStateRunning) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode:    exitCodeUnknown,
		Reason:      reasonUnknown,
		Message:     messageVanished,
		StartedAt:   stamp(ran.StartedAt.Time),
		ContainerID: id,
	}}
}

func lostEnd(t *corev1.ContainerStateTerminated) bool { return t.Reason == reasonUnknown }
