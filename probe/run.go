package probe

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// reconcilePod sets the probe's timer by what is seen of its container. The caller holds
// mu.
func (m *Manager) reconcilePod(b *probe, view *runtime.Pod, now time.Time) {
	if m.ctx == nil || b.stopped || b.cancel != nil {
		return
	}
	wait := period(b.spec) // in case nobody tells that a container began
	if c := running(view, b.name); c != nil {
		if c.ID != b.id {
			b.begin(c, now)
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

// running returns the container to probe: the newest of that name, if it runs.
func running(view *runtime.Pod, name string) *runtime.Container {
	if c := view.LatestContainer(name); c != nil && c.State == runtime.Running {
		return c
	}
	return nil
}

// begin starts the probe anew for another container.
func (b *probe) begin(c *runtime.Container, now time.Time) {
	b.id = c.ID
	b.tally, b.done = thresholdCounter{}, false
	b.adopt()
	b.due = first(b.spec, c.Started, now, b.share)
}

// shouldRun reports whether there is something to find out about the container now.
func (b *probe) shouldRun() bool {
	if b.done || b.kind == Startup {
		return !b.done
	}
	s := b.pod.probes[key{b.name, Startup}]
	return s == nil || s.id == b.id && s.result == runtime.ProbeSuccess
}

// fire runs the probe if it is due.
func (m *Manager) fire(b *probe) {
	m.mu.Lock()
	if m.ctx == nil || b.stopped || b.cancel != nil {
		m.mu.Unlock()
		return
	}
	view, now := m.updatePod(b.pod), time.Now()
	c := running(&view, b.name)
	if c == nil || c.ID != b.id || !b.shouldRun() || now.Before(b.due) {
		m.reconcilePod(b, &view, now)
		m.mu.Unlock()
		return
	}
	ctx, cancel := context.WithTimeout(m.ctx, timeout(b.spec))
	b.cancel = cancel
	m.wg.Add(1)
	defer m.wg.Done()
	t := m.target(b, &view, c)
	due := b.due
	m.mu.Unlock()

	found := unknown(safe.ErrPanic)
	safe.Do(m.cfg.Logger, "probe container "+t.container.Name, func() { found = m.handle(ctx, t) })
	cancel()
	m.ended(b, &t, due, now, found)
}

// ended takes in what a run has found.
func (m *Manager) ended(b *probe, t *target, due, began time.Time, found probeOutcome) {
	m.mu.Lock()
	now := time.Now()
	b.cancel = nil
	stale := b.stopped || m.ctx == nil
	if !stale {
		m.record(b, found, now)
		b.due = following(due, now, period(b.spec))
		view := m.updatePod(b.pod)
		m.reconcilePod(b, &view, now)
	}
	m.mu.Unlock()
	if stale {
		return // the probe was called off: what it found says nothing
	}
	m.event(t, found)
	if h := m.cfg.Hooks.Probed; h != nil {
		h(ProbeRun{t.pod, t.container.Name, t.kind, found.result, due, began, now.Sub(began)})
	}
}

// record counts a finding and tells what changes by it. The caller holds mu.
func (m *Manager) record(b *probe, found probeOutcome, now time.Time) {
	if found.result == runtime.ProbeUnknown || !b.tally.add(found.result, b.spec) || found.result == b.result {
		return
	}
	b.result = found.result
	// A container that has failed is to be killed; one that has started has.
	b.done = b.kind == Startup || b.kind == Liveness && found.result == runtime.ProbeFailure
	m.publish(b, found)
	if b.kind != Startup || found.result != runtime.ProbeSuccess {
		return
	}
	view := m.updatePod(b.pod)
	for _, k := range []ProbeType{Readiness, Liveness} {
		if o := b.pod.probes[key{b.name, k}]; o != nil {
			m.reconcilePod(o, &view, now)
		}
	}
}

func (m *Manager) publish(b *probe, found probeOutcome) {
	c := ResultChange{
		UID: b.pod.uid, Container: b.name, ContainerID: b.id, Type: b.kind,
		Result: found.result, Message: found.message,
	}
	if s := b.spec.TerminationGracePeriodSeconds; s != nil && found.result == runtime.ProbeFailure {
		grace := podspec.Seconds(*s)
		c.GracePeriod = &grace
	}
	m.backlog.add(c)
	select {
	case m.notify <- struct{}{}:
	default:
	}
}

// event tells people of a probe that did not simply succeed.
func (m *Manager) event(t *target, found probeOutcome) {
	if m.cfg.Recorder == nil || found.result == runtime.ProbeSuccess && found.message == "" {
		return
	}
	reason, what := "Unhealthy", "failed"
	switch found.result {
	case runtime.ProbeSuccess:
		reason, what = "ProbeWarning", "warns"
	case runtime.ProbeUnknown:
		what = "could not be run"
	default:
	}
	text := fmt.Sprintf("%s probe %s: %s", t.kind, what, found.message)
	ev := podspec.NewEvent(t.pod, corev1.EventTypeWarning, reason, text, time.Now())
	list := "containers"
	for i := range t.pod.Spec.InitContainers {
		if t.pod.Spec.InitContainers[i].Name == t.container.Name {
			list = "initContainers"
		}
	}
	ev.InvolvedObject.FieldPath = fmt.Sprintf("spec.%s{%s}", list, t.container.Name)
	m.cfg.Recorder.Record(ev)
}
