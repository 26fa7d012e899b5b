package probe

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// reconcile sets the timer of a probe from the observed state of its container. The
// caller holds mu.
func (m *Manager) reconcile(b *probe, now time.Time) {
	if m.ctx == nil || b.stopped || b.cancel != nil {
		return
	}
	wait := period(b.spec) // until a new container is looked up without AddPod
	if c := b.running(); c != nil {
		if c.ID != b.id {
			b.restart(c, now)
		}
		if b.shouldRun() {
			wait = max(b.due.Sub(now), 0)
		}
	}
	if b.timer == nil {
		b.timer = time.AfterFunc(wait, func() { m.fire(b) })
	} else {
		b.timer.Reset(wait)
	}
}

// running returns the container to probe: the latest of its name, if it runs.
func (b *probe) running() *runtime.Container {
	if c := b.pod.observed.LatestContainer(b.name); c != nil && c.State == runtime.Running {
		return c
	}
	return nil
}

// restart starts the probe from the beginning for another container.
func (b *probe) restart(c *runtime.Container, now time.Time) {
	b.id = c.ID
	b.counter, b.done = thresholdCounter{}, false
	b.adopt()
	b.due = first(b.spec, c.Started, now, b.offset)
}

// shouldRun reports whether the result for the container can change now.
func (b *probe) shouldRun() bool {
	if b.done || b.kind == Startup {
		return !b.done
	}
	s := b.pod.probes[key{b.name, Startup}]
	return s == nil || s.id == b.id && s.result == runtime.ProbeSuccess
}

// execAllowance is how long a run of a command may take beyond its timeout. The runtime ends
// a command at the timeout, which begins when the command does; a runtime that is slow to
// begin or to answer says nothing about the health of its containers. A kubelet waits for
// two minutes.
const execAllowance = time.Minute

// fire runs the probe if it is due.
func (m *Manager) fire(b *probe) {
	observed := m.cachedPod(b.pod.uid)
	m.mu.Lock()
	if b.stopped || b.cancel != nil { // also after Run, which stops all probes
		m.mu.Unlock()
		return
	}
	b.pod.observe(observed)
	c, now := b.running(), time.Now()
	if c == nil || c.ID != b.id || !b.shouldRun() || now.Before(b.due) {
		m.reconcile(b, now)
		m.mu.Unlock()
		return
	}
	run := m.ctx
	limit := timeout(b.spec)
	if b.spec.Exec != nil {
		limit += execAllowance
	}
	ctx, cancel := context.WithTimeout(run, limit)
	b.cancel = cancel
	m.wg.Add(1)
	defer m.wg.Done()
	t := m.target(b, c)
	due := b.due
	m.mu.Unlock()

	outcome := unknown(safe.ErrPanic)
	safe.Do(m.cfg.Logger, "probe container "+t.container.Name, func() { outcome = m.handle(ctx, t) })
	cancel()
	m.completeRun(run, b, &t, due, now, outcome)
}

// completeRun records the outcome of a run and schedules the next one.
func (m *Manager) completeRun(ctx context.Context, b *probe, t *target, due, startTime time.Time, outcome probeOutcome) {
	observed := m.cachedPod(b.pod.uid)
	m.mu.Lock()
	now := time.Now()
	b.cancel = nil
	cancelled := b.stopped || m.ctx.Err() != nil // Run stops all probes before ctx is nil
	if !cancelled {
		b.pod.observe(observed)
		m.record(b, outcome, now)
		b.due = following(due, now, period(b.spec))
		m.reconcile(b, now)
	}
	m.mu.Unlock()
	if cancelled {
		return // the outcome of a cancelled run has no meaning
	}
	if h := m.cfg.Hooks.Probed; h != nil {
		h(ProbeRun{t.pod, t.container.Name, t.kind, outcome.result, due, startTime, now.Sub(startTime)})
	}
	if outcome.result == runtime.ProbeSuccess || m.isStillRunning(ctx, t) {
		m.event(t, outcome)
	}
}

// exitDelay is the time until the exit of a container has been observed at the latest,
// if the runtime reports it by an event.
const exitDelay = 100 * time.Millisecond

// isStillRunning reports whether a container runs after its probe has failed. That a
// container that has exited cannot be probed says nothing about its health.
func (m *Manager) isStillRunning(ctx context.Context, t *target) bool {
	if sleep.For(ctx, exitDelay) != nil {
		return false
	}
	observed := m.cachedPod(t.pod.UID)
	c := observed.LatestContainer(t.container.Name)
	return c != nil && c.ID == t.id && c.State == runtime.Running
}

// record counts an outcome and publishes the change of the result. The caller holds mu.
func (m *Manager) record(b *probe, outcome probeOutcome, now time.Time) {
	if outcome.result == runtime.ProbeUnknown || !b.counter.add(outcome.result, b.spec) || outcome.result == b.result {
		return
	}
	b.result = outcome.result
	// A container that has failed will be killed, and one that has started stays started.
	// Liveness changes only to a failure, because a container counts as alive before.
	b.done = b.kind != Readiness
	m.publish(b, outcome)
	if b.kind != Startup || outcome.result != runtime.ProbeSuccess {
		return
	}
	for _, k := range []ProbeType{Readiness, Liveness} {
		if o := b.pod.probes[key{b.name, k}]; o != nil {
			m.reconcile(o, now)
		}
	}
}

func (m *Manager) publish(b *probe, outcome probeOutcome) {
	c := ResultChange{
		UID: b.pod.uid, Container: b.name, ContainerID: b.id, Type: b.kind,
		Result: outcome.result, Message: outcome.message,
	}
	if s := b.spec.TerminationGracePeriodSeconds; s != nil && outcome.result == runtime.ProbeFailure {
		grace := podspec.Seconds(*s)
		c.GracePeriod = &grace
	}
	m.backlog.add(c)
	notify.Send(m.notify)
}

// event emits an event for a run that has failed, could not run, or has a warning.
func (m *Manager) event(t *target, outcome probeOutcome) {
	if m.cfg.Recorder == nil || outcome.result == runtime.ProbeSuccess && outcome.message == "" {
		return
	}
	reason, verb := "Unhealthy", "failed"
	switch outcome.result {
	case runtime.ProbeSuccess:
		reason, verb = "ProbeWarning", "warns"
	case runtime.ProbeUnknown:
		verb = "could not be run"
	default:
	}
	text := fmt.Sprintf("%s probe %s: %s", t.kind, verb, outcome.message)
	m.cfg.Recorder.Record(podspec.NewContainerEvent(t.pod, t.container.Name, corev1.EventTypeWarning, reason, text, time.Now()))
}
