package runtime

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/podspec"
)

// Plan returns what is to be done to bring a pod from what was seen to what it
// asks for. It is pure: same input, same plan. seen must be an inspection; a
// listing would do, but tells too little to find a lost address, a resize or
// the end of a back-off.
//
// A plan holds all that can be done now, in this order: containers to end (ones
// that follow each other may be ended at once, but for their stages), sandboxes to stop, the sandbox
// to make, leftovers to remove, resources to change, containers to start
// (ephemeral ones, then either the next init container or the regular ones),
// and what is waited for. An empty plan means that the pod is where it
// should be, or that something under way (an init container, a startup probe)
// has to come to its end first.
//
// Init containers and sidecars are started one a plan, each only after the
// former is done or has started (it may be replaced since), so that no action has to wait for
// the success of another but for these: after a failure of KillSandbox or CreateSandbox
// nothing further is done, and after a failed action of a container no further
// action of that same container. Then the pod is looked at and planned again.
//
// A pod that is Done is ended, sandbox and all. A pod that is being deleted gets
// no plan: its end is PlanTermination's.
func Plan(pod *corev1.Pod, seen PlanInput, now time.Time) []Action {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	p := &planner{
		podScope: newScope(pod, &seen.Pod, seen.Probes),
		view:     &seen, now: now, grace: atLeastMinGrace(podspec.GracePeriod(pod)),
	}
	if p.view.BackOff == nil {
		p.view.BackOff = DefaultBackOff()
	}
	if done, _ := p.done(); done {
		p.end(ReasonPodTerminal, false)
		return p.actions()
	}
	if p.unusable != "" {
		p.replaceSandbox()
	} else {
		p.killStale()
	}
	if p.initContainers() {
		for i := range pod.Spec.Containers {
			p.keep(&pod.Spec.Containers[i], Regular)
		}
	}
	others := p.starts
	p.starts = nil
	p.ephemerals() // they look at what the plan ends, and start first
	p.starts = append(p.starts, others...)
	return p.actions()
}

// planner gathers a plan. Its lists are put together in the order of the plan.
type planner struct {
	*podScope

	view  *PlanInput
	now   time.Time
	grace time.Duration

	kills     []Action
	sandboxes []Action
	changes   []Action // removals and updates
	starts    []Action
	waits     []Action
}

func (p *planner) actions() []Action {
	n := len(p.kills) + len(p.sandboxes) + len(p.changes) + len(p.starts) + len(p.waits)
	if n == 0 {
		return nil
	}
	all := make([]Action, 0, n)
	for _, list := range [][]Action{p.kills, p.sandboxes, p.changes, p.starts, p.waits} {
		all = append(all, list...)
	}
	return all
}

// end plans the end of everything in the pod. again says that a new sandbox
// follows: then the newest is stopped though it is not ready, for it may still
// hold its address and ports.
func (p *planner) end(reason string, again bool) {
	held := make(map[string]bool)
	for i := range p.seen.Containers {
		if c := &p.seen.Containers[i]; alive(c) {
			held[c.SandboxID] = true
			p.kill(c, reason, "", p.grace)
		}
	}
	p.stage()
	for i := range p.seen.Sandboxes {
		s := &p.seen.Sandboxes[i]
		if s.State == SandboxReady || held[s.ID] || again && s == p.sandbox {
			p.sandboxes = append(p.sandboxes, Action{Type: KillSandbox, ID: s.ID, Attempt: s.Attempt, Reason: reason})
		}
	}
}

// stage has sidecars end after what they serve, in the reverse order of their start.
func (p *planner) stage() {
	for i := range p.kills {
		if a := &p.kills[i]; a.ContainerType == Sidecar {
			a.Stage = 1 + sidecarRank(p.pod, p.seen, a.Container)
		}
	}
	slices.SortStableFunc(p.kills, func(a, b Action) int { return cmp.Compare(a.Stage, b.Stage) })
	compactStages(p.kills, func(a *Action) *int { return &a.Stage })
}

// replaceSandbox plans a new sandbox in place of all that there are.
func (p *planner) replaceSandbox() {
	attempt := uint32(0)
	if p.sandbox != nil {
		attempt = after(p.sandbox.Attempt)
	}
	p.end(p.unusable, true)
	p.sandboxes = append(p.sandboxes, Action{Type: CreateSandbox, Attempt: attempt, Reason: p.unusable})
	p.sandbox = nil // nothing is in the new one yet
}

// killStale plans the end of what runs and should not: in an older sandbox, of
// an older round, twice, or under a name that the spec does not have.
func (p *planner) killStale() {
	for i := range p.seen.Containers {
		c := &p.seen.Containers[i]
		if !alive(c) {
			continue
		}
		_, kind := find(p.pod, c.Name)
		switch {
		case ContainerSpec(p.pod, c.Name) == nil:
			p.kill(c, ReasonNotInSpec, "the pod has no container of this name", p.grace)
		case !p.inSandbox(c):
			p.kill(c, ReasonStale, "it belongs to an older sandbox", p.grace)
		case c != p.last(c.Name):
			p.kill(c, ReasonStale, "a newer container of this name exists", p.grace)
		case c.RestartGeneration < p.round && kind != Ephemeral:
			p.kill(c, ReasonRestartAll, "a restart rule restarts all containers", p.grace)
		}
	}
}

func alive(c *Container) bool { return c.State == Running || c.State == Unknown }

func (p *planner) kill(c *Container, reason, message string, grace time.Duration) {
	kind, ok := ContainerTypeOf(p.pod, c.Name)
	if !ok {
		kind = c.Type
	}
	p.kills = append(p.kills, Action{
		Type: KillContainer, Container: c.Name, ContainerType: kind, ID: c.ID, Attempt: c.Attempt,
		GracePeriod: grace, Reason: reason, Message: message,
	})
}

// start plans the start of a container with the next free attempt.
func (p *planner) start(c *corev1.Container, kind ContainerType, step int, reason string) {
	attempt, known := uint32(0), false
	if least, ok := p.view.Restarts[c.Name]; ok {
		attempt, known = least, true
	}
	if last := p.last(c.Name); last != nil {
		attempt, known = max(attempt, last.Attempt), true
	}
	if known {
		attempt = after(attempt)
	}
	p.startAs(c, kind, attempt, step, reason)
}

func (p *planner) startAs(c *corev1.Container, kind ContainerType, attempt uint32, step int, reason string) {
	p.starts = append(p.starts, Action{
		Type: StartContainer, Container: c.Name, ContainerType: kind, Attempt: attempt, BackOffStep: step, RestartGeneration: p.round, Reason: reason,
	})
}

func after(attempt uint32) uint32 {
	if attempt == math.MaxUint32 {
		return attempt
	}
	return attempt + 1
}

// restart plans the start of a container that is not here: for the first
// time, or after last, once its back-off has ended.
func (p *planner) restart(c *corev1.Container, kind ContainerType, last *Container) {
	switch {
	case last == nil:
		p.start(c, kind, 0, "")
	case last.State == Created && p.isCurrent(last):
		// Nobody has seen it run: it gives its number to the one that takes its place.
		p.changes = append(p.changes, Action{
			Type: RemoveContainer, Container: c.Name, ContainerType: kind, ID: last.ID, Attempt: last.Attempt, Reason: ReasonNotStarted,
		})
		p.startAs(c, kind, last.Attempt, last.BackOffStep, ReasonNotStarted)
	case last.RestartGeneration < p.round && !p.triggers(c, last):
		p.start(c, kind, 0, ReasonRestartAll)
	case last.State != Exited:
		p.start(c, kind, last.BackOffStep, p.unusable) // it ends with its sandbox, not by itself
	case changed(c, last):
		p.start(c, kind, 0, ReasonSpecChanged)
	case kind == Init && succeeded(kind, last) && !p.triggers(c, last):
		p.start(c, kind, 0, p.unusable) // it did its work, and does it again in a new sandbox
	default:
		p.backOff(c, kind, last)
	}
}

// backOff plans the start of a container that ended by itself, or the wait for
// it.
func (p *planner) backOff(c *corev1.Container, kind ContainerType, last *Container) {
	step, delay := p.delay(c, last)
	ended := last.Finished
	if ended.IsZero() {
		ended = last.Created
	}
	// An end that is yet to come tells of a clock that was set back. Waiting for
	// it could take for ever.
	ahead := ended.After(p.now.Add(time.Minute))
	if until := monotonic.Past(ended, p.now).Add(delay); p.now.Before(until) && !ahead {
		p.waits = append(p.waits, Action{
			Type: Wait, Container: c.Name, ContainerType: kind, ID: last.ID, Attempt: last.Attempt, BackOffStep: step,
			Until: until, Reason: ReasonCrashLoop,
			Message: fmt.Sprintf("back-off %v restarting failed container=%s pod=%s(%s)", delay, c.Name, podspec.FullName(p.pod), p.pod.UID),
		})
		return
	}
	p.start(c, kind, step+1, "")
}

// delay asks the BackOff how long to wait after last, and returns the step that
// last stood at: 0 if it ran so long that the count starts anew.
func (p *planner) delay(c *corev1.Container, last *Container) (step int, delay time.Duration) {
	r := RestartInfo{Pod: p.pod, Container: c, ExitCode: last.ExitCode, BackOffStep: max(last.BackOffStep, 0), Attempt: last.Attempt}
	ended := last.Finished
	if alive(last) {
		ended = p.now
	}
	if !last.Started.IsZero() && ended.After(last.Started) {
		r.RunDuration = ended.Sub(last.Started)
	}
	good := r.RunDuration >= DefaultBackOffReset
	if b, ok := p.view.BackOff.(BackOffResetter); ok {
		good = b.ShouldReset(r)
	}
	if good {
		r.BackOffStep = 0
	}
	return r.BackOffStep, max(p.view.BackOff.Delay(r), 0)
}
