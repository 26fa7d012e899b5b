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

// Plan returns the actions that bring a pod from its observed to its desired state. It
// is pure: equal inputs give equal plans. observed should be an inspection. A listing is
// possible, but lacks lost addresses, resizes and the end of a back-off.
//
// A plan contains all actions that are possible now, in this order: containers to kill
// (those of one stage in parallel), sandboxes to stop, the sandbox to create, containers
// to remove, resources to update, containers to start (ephemeral ones, then either the
// next init container or the regular ones), and waits. An empty plan means that the pod
// is in its desired state, or that something in progress (an init container, a startup
// probe) must end first.
//
// Each plan starts at most one init container or sidecar, and only after the previous
// one has completed or started, so that no action depends on the success of another
// except these: a failure of KillSandbox or CreateSandbox ends the plan, and a failed
// action of a container skips the further actions of that container. Then the pod is
// inspected and planned again.
//
// A terminal pod is stopped, including its sandbox. The plan of a pod with a deletion
// timestamp is empty: PlanTermination is used instead.
func Plan(pod *corev1.Pod, observed PlanInput, now time.Time) []Action {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	p := &planner{
		podScope: newScope(pod, &observed.Pod, observed.Probes),
		view:     &observed, now: now, grace: atLeastMinGrace(podspec.GracePeriod(pod)),
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
	if slices.ContainsFunc(p.kills, func(a Action) bool { return a.Reason == ReasonRestartAll }) {
		p.stage() // the other containers stop too, and may need the sidecars until then
	}
	others := p.starts
	p.starts = nil
	p.ephemerals() // they depend on what the plan kills, and start first
	p.starts = append(p.starts, others...)
	return p.actions()
}

// planner collects a plan. Its lists are joined in the order of the plan.
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

// end plans the stop of all containers and sandboxes. recreate means that a new sandbox
// follows: then the newest is stopped even if it is not ready, because it may still
// occupy its address and ports.
func (p *planner) end(reason string, recreate bool) {
	occupied := make(map[string]bool)
	for i := range p.observed.Containers {
		if c := &p.observed.Containers[i]; alive(c) {
			occupied[c.SandboxID] = true
			p.kill(c, reason, "", p.grace)
		}
	}
	p.stage()
	for i := range p.observed.Sandboxes {
		s := &p.observed.Sandboxes[i]
		if s.State == SandboxReady || occupied[s.ID] || recreate && s == p.sandbox {
			p.sandboxes = append(p.sandboxes, Action{Type: KillSandbox, ID: s.ID, Attempt: s.Attempt, Reason: reason})
		}
	}
}

// stage stops sidecars after the other containers, in the reverse order of their start.
func (p *planner) stage() {
	for i := range p.kills {
		if a := &p.kills[i]; a.ContainerType == Sidecar {
			a.Stage = 1 + sidecarRank(p.pod, p.observed, a.Container)
		}
	}
	slices.SortStableFunc(p.kills, func(a, b Action) int { return cmp.Compare(a.Stage, b.Stage) })
	compactStages(p.kills, func(a *Action) *int { return &a.Stage })
}

// replaceSandbox plans a new sandbox that replaces all others.
func (p *planner) replaceSandbox() {
	attempt := uint32(0)
	if p.sandbox != nil {
		attempt = after(p.sandbox.Attempt)
	}
	p.end(p.unusable, true)
	p.sandboxes = append(p.sandboxes, Action{Type: CreateSandbox, Attempt: attempt, Reason: p.unusable})
	p.sandbox = nil // the new one is empty
}

// killStale plans to kill containers that should not run: those of an older sandbox or
// restart generation, duplicates, and those that are not in the spec.
func (p *planner) killStale() {
	for i := range p.observed.Containers {
		c := &p.observed.Containers[i]
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

// start plans the start of a container with the next unused attempt.
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

// restart plans the start of a container that does not run: for the first time, or
// after last, once its back-off has ended.
func (p *planner) restart(c *corev1.Container, kind ContainerType, last *Container) {
	switch {
	case last == nil:
		p.start(c, kind, 0, "")
	case last.State == Created && p.isCurrent(last):
		// It never ran: its replacement gets the same attempt.
		p.changes = append(p.changes, Action{
			Type: RemoveContainer, Container: c.Name, ContainerType: kind, ID: last.ID, Attempt: last.Attempt, Reason: ReasonNotStarted,
		})
		p.startAs(c, kind, last.Attempt, last.BackOffStep, ReasonNotStarted)
	case last.RestartGeneration < p.round && !p.triggers(c, last):
		p.start(c, kind, 0, ReasonRestartAll)
	case last.State != Exited:
		p.start(c, kind, last.BackOffStep, p.unusable) // it is stopped with its sandbox, and did not exit by itself
	case changed(p.pod, c, last, p.view.Injections[c.Name]):
		p.start(c, kind, 0, ReasonSpecChanged)
	case kind == Init && succeeded(kind, last) && !p.triggers(c, last):
		p.start(c, kind, 0, p.unusable) // it completed, and runs again in a new sandbox
	default:
		p.backOff(c, kind, last)
	}
}

// backOff plans the restart of a container that exited by itself, or the wait for it.
func (p *planner) backOff(c *corev1.Container, kind ContainerType, last *Container) {
	step, delay := p.delay(c, last)
	ended := last.Finished
	if ended.IsZero() {
		ended = last.Created
	}
	// A termination time in the future means that the clock was set back. Waiting for
	// it could take indefinitely.
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

// delay returns the delay of the BackOff after last, and the back-off step of last: 0 if
// it ran long enough to reset the back-off, or if its resources have changed since: who gives
// more memory to a container that was killed for the lack of it need not wait.
func (p *planner) delay(c *corev1.Container, last *Container) (step int, delay time.Duration) {
	r := RestartInfo{Pod: p.pod, Container: c, ExitCode: last.ExitCode, BackOffStep: max(last.BackOffStep, 0), Attempt: last.Attempt}
	ended := last.Finished
	if alive(last) {
		ended = p.now
	}
	if !last.Started.IsZero() && ended.After(last.Started) {
		r.RunDuration = ended.Sub(last.Started)
	}
	good := r.RunDuration >= defaultBackOffReset
	if b, ok := p.view.BackOff.(BackOffResetter); ok {
		good = b.ShouldReset(r)
	}
	if good || last.BackOffResources != "" && last.BackOffResources != HashResources(c) {
		r.BackOffStep = 0
	}
	return r.BackOffStep, max(p.view.BackOff.Delay(r), 0)
}
