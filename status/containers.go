package status

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// The reasons and figures that the Kubernetes API gives containers whose end
// nobody saw, and those that wait for their turn.
const (
	reasonUnknown   = "ContainerStatusUnknown"
	reasonCreating  = "ContainerCreating"
	reasonPodInit   = "PodInitializing"
	reasonBlocked   = "Blocked"
	exitCodeUnknown = 137
	messageVanished = "The container could not be located when the pod was terminated"
	messagePassed   = "The container is gone from the runtime; it is taken as completed, for the pod has been initialized"
	reasonCompleted = "Completed"
	reasonError     = "Error"
	maxMessages     = 12 << 10 // bytes of all termination messages of a pod
)

// slot is one container of the pod spec.
type slot struct {
	kind runtime.ContainerType
	c    *corev1.Container
}

// specsOf returns the init containers or the regular ones, in the spec's order.
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

// byName sorts statuses as a kubelet does: kubectl tells the first trouble in the
// list as that of the pod. Only init containers stay in the spec's order.
func byName(list []corev1.ContainerStatus) []corev1.ContainerStatus {
	slices.SortFunc(list, func(a, b corev1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// formerOf returns what was told of a container before, or nil.
func (g *generator) formerOf(s slot) *corev1.ContainerStatus {
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
	former := g.formerOf(s)
	if former == nil {
		former = &corev1.ContainerStatus{}
	}
	newest, previous := attempts(&g.report.Observed, s.c.Name)
	var cs corev1.ContainerStatus
	if newest != nil {
		cs = g.fromObserved(s, newest, previous, former)
	} else {
		cs = g.fromPrevious(s, former)
	}
	cs.Name = s.c.Name
	cs.RestartCount = max(cs.RestartCount, former.RestartCount)
	g.overlayFailure(s, &cs)
	g.overlayEnd(s, &cs)
	g.health(s, newest, &cs, former)
	g.containerResources(s, newest, &cs, former)
	cs.VolumeMounts = g.volumeMounts(s.c)
	return cs
}

// attempts returns the newest attempt at running a container and the one
// before it; either may be nil.
func attempts(seen *runtime.Pod, name string) (newest, previous *runtime.Container) {
	for i := range seen.Containers {
		c := &seen.Containers[i]
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

// fromObserved tells a container that the runtime has.
func (g *generator) fromObserved(s slot, c, previous *runtime.Container, former *corev1.ContainerStatus) corev1.ContainerStatus {
	id := g.containerID(c.ID)
	same := former.ContainerID == id
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
		cs.User = former.User
	}
	if c.StopSignal != "" {
		cs.StopSignal = &c.StopSignal
	} else if same {
		cs.StopSignal = former.StopSignal
	}
	if !g.observed() && same {
		// A listing knows neither times nor exit codes.
		cs.ImageID, cs.State, cs.LastTerminationState = former.ImageID, former.State, former.LastTerminationState
		return cs
	}
	if same {
		g.keepKnownEnd(&cs, former)
	}
	cs.LastTerminationState.Terminated = g.lastEnd(&cs, previous, former, same)
	return cs
}

// keepKnownEnd makes an end that was told stay as it was told. What was told
// as lost gives way to what the runtime says after all.
func (g *generator) keepKnownEnd(cs, former *corev1.ContainerStatus) {
	told := former.State.Terminated
	if told == nil {
		told = former.LastTerminationState.Terminated
		if told == nil || told.ContainerID != cs.ContainerID {
			// It never ended, as far as was told. One that ran and that the
			// runtime has lost track of has ended now.
			if former.State.Running != nil && cs.State.Waiting != nil {
				cs.State = lostContainer(cs.ContainerID, former.State.Running)
			}
			return
		}
	}
	if cs.State.Running != nil || (lostEnd(told) && cs.State.Terminated != nil) {
		return
	}
	cs.State = corev1.ContainerState{Terminated: told}
}

// lastEnd returns how the attempt before this one ended: of what the runtime
// has and what was told, the later.
func (g *generator) lastEnd(
	cs *corev1.ContainerStatus, previous *runtime.Container, former *corev1.ContainerStatus, same bool,
) *corev1.ContainerStateTerminated {
	told := former.LastTerminationState.Terminated
	switch {
	case same:
	case former.ContainerID == "":
		// It never ran, or its end was inferred and says nothing about an attempt.
	case former.State.Terminated != nil:
		told = former.State.Terminated
	case former.State.Running != nil:
		told = lostContainer(former.ContainerID, former.State.Running).Terminated
	}
	if told != nil && told.ContainerID == cs.ContainerID && (cs.State.Running == nil || lostEnd(told)) {
		told = nil // it is this one's own, told while it waited to be restarted or was lost
	}
	if previous == nil || previous.State != runtime.Exited {
		return told
	}
	seen := g.terminated(previous)
	switch {
	case told == nil, lostEnd(told):
		return seen
	case told.ContainerID == seen.ContainerID, told.FinishedAt.After(seen.FinishedAt.Time):
		return told
	default:
		return seen
	}
}

// fromPrevious tells a container that the runtime does not have.
func (g *generator) fromPrevious(s slot, former *corev1.ContainerStatus) corev1.ContainerStatus {
	cs := *former
	switch {
	case g.report.Blocked != nil && g.observed():
		// It starts over: how it ended when its pod was stopped is no result of it.
		cs = corev1.ContainerStatus{RestartCount: former.RestartCount, State: g.waiting(s)}
	case s.kind == runtime.Init && g.initDone:
		g.passed(&cs, former)
	case former.State.Terminated != nil:
	case former.State.Running != nil && g.observed():
		cs.State = lostContainer(former.ContainerID, former.State.Running)
	case former.State.Running != nil:
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

// passed tells an init container that the runtime does not have any more as done,
// though nobody saw its end: the regular containers came after it.
func (g *generator) passed(cs, former *corev1.ContainerStatus) {
	end := former.State.Terminated
	switch {
	case end == nil:
	case initSucceeded(end):
		return
	case !lostEnd(end):
		cs.LastTerminationState = former.State // it ran once more
	}
	// Which attempt it was that completed, nobody knows.
	cs.ContainerID = ""
	cs.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reasonCompleted, Message: messagePassed}}
}

// overlayFailure tells a container that should run as waiting, with the reason
// why it does not. Its end becomes its last.
func (g *generator) overlayFailure(s slot, cs *corev1.ContainerStatus) {
	f := g.report.Failures[s.c.Name]
	if f.Reason == "" || cs.State.Running != nil || g.final() {
		if b := g.report.Blocked; b != nil && cs.State.Waiting != nil {
			cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonBlocked}
		}
		return
	}
	if end := cs.State.Terminated; end != nil {
		if s.kind == runtime.Ephemeral || !mayRestart(g.pod, s.c, end) && !g.restartsWithAll(s.c.Name) {
			return
		}
		cs.LastTerminationState = cs.State
	}
	cs.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}}
}

// overlayEnd tells the last end of a container of a pod that is over, instead
// of a wait for what will not come. One that should have run and of which nothing
// was ever seen is told as lost, as the API has it.
func (g *generator) overlayEnd(s slot, cs *corev1.ContainerStatus) {
	last := cs.LastTerminationState.Terminated
	switch {
	case !g.final() || cs.State.Waiting == nil:
		return
	case last == nil:
		if s.kind == runtime.Regular && g.wasInitialized() {
			cs.State = lostContainer(cs.ContainerID, &corev1.ContainerStateRunning{})
		}
		return
	}
	cs.State, cs.LastTerminationState = corev1.ContainerState{Terminated: last}, corev1.ContainerState{}
	if last.ContainerID != "" {
		cs.ContainerID = last.ContainerID // one that was made since never ran
	}
}

// wasInitialized reports whether the pod's regular containers had their turn: they
// have it at once, or when the last init container is done or the last sidecar has
// started.
func (g *generator) wasInitialized() bool {
	n := len(g.pod.Spec.InitContainers)
	if n == 0 {
		return true
	}
	for i := range g.pod.Spec.Containers {
		name := g.pod.Spec.Containers[i].Name
		former := find(g.previous.ContainerStatuses, name)
		if g.report.Observed.LatestContainer(name) != nil || former != nil && former.ContainerID != "" {
			return true
		}
	}
	last := &g.pod.Spec.InitContainers[n-1]
	if podspec.IsSidecar(last) {
		// It is done when it has started, which its end says nothing about.
		return isStarted(g.previous.InitContainerStatuses, last.Name)
	}
	if c := g.report.Observed.LatestContainer(last.Name); c != nil {
		return c.State == runtime.Exited && initSucceeded(g.terminated(c))
	}
	return isReady(g.previous.InitContainerStatuses, last.Name)
}

// state tells the state of one attempt as seen.
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

// lastWords is what there is room for of a container's termination message. A pod
// has 12 KiB for those of all its containers, each the same part, as the API has
// it. The end counts, where the error is.
func (g *generator) lastWords(message string) string {
	spec := &g.pod.Spec
	room := maxMessages / max(len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers), 1)
	if len(message) <= room {
		return message
	}
	return strings.ToValidUTF8(message[len(message)-room:], "") // no part of a character stays
}

// waiting is the state of a container whose turn has not come: the API names
// the wait for init containers differently.
func (g *generator) waiting(s slot) corev1.ContainerState {
	reason := reasonCreating
	if len(g.pod.Spec.InitContainers) > 0 && s.kind != runtime.Ephemeral {
		reason = reasonPodInit
	}
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

// containerID is an id as the API writes it.
func (g *generator) containerID(id string) string {
	if g.env.RuntimeName == "" {
		return id
	}
	return g.env.RuntimeName + "://" + id
}

// lostContainer is the state of a container that ran and whose end nobody saw.
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
