package pleg

import (
	"context"
	"log/slog"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/runtime"
)

// Notify returns a channel with one slot that is filled when Drain has events to
// return. It must have one reader only.
func (g *Generator) Notify() <-chan struct{} { return g.notify }

// Drain returns the events since its last call, in order per pod, and logs each at
// Debug. It does not block. The state that an event leads to is in the Cache before
// Drain returns the event.
//
// The number of undrained events is bounded per pod: a long list is replaced by
// the difference between the last state that was drained and the current one.
func (g *Generator) Drain() []Event {
	g.mu.Lock()
	select {
	case <-g.notify: // the reader has nothing more to drain
	default:
	}
	pods := g.backlog.drain()
	g.mu.Unlock()
	var events []Event
	for _, p := range pods {
		events = append(events, p.events...)
		g.logEvents(p)
	}
	return events
}

func (g *Generator) logEvents(p *pending) {
	ctx := context.Background() //nolint:forbidigo // slog requires one, and Drain has none
	if !g.cfg.Logger.Enabled(ctx, slog.LevelDebug) {
		return
	}
	for _, e := range p.events {
		g.cfg.Logger.LogAttrs(ctx, slog.LevelDebug, "pod lifecycle event", e.attrs(&p.latest)...)
	}
}

// attrs returns the log attributes of the event. Those that are not known are left
// out.
func (e Event) attrs(pod *runtime.Pod) []slog.Attr {
	attrs := []slog.Attr{slog.String("type", e.Type.String())}
	if pod.Name != "" {
		attrs = append(attrs, logattr.PodName(pod.Namespace, pod.Name))
	}
	attrs = append(attrs, logattr.PodUID(e.UID))
	switch {
	case e.Name != "":
		attrs = append(attrs, slog.String("containerName", e.Name), slog.Uint64("attempt", uint64(e.Attempt)))
		if e.ID != "" {
			attrs = append(attrs, slog.String("containerID", e.ID))
		}
	case e.ID != "":
		attrs = append(attrs, slog.String("sandboxID", e.ID))
	}
	if e.HasExitCode {
		attrs = append(attrs, slog.Int64("exitCode", int64(e.ExitCode)))
	}
	return attrs
}

// publish adds the events between two states to the backlog. The caller holds mu.
func (g *Generator) publish(previous, current runtime.Pod, events []Event) {
	if len(events) == 0 {
		return
	}
	g.backlog.add(previous, current, events)
	notify.Send(g.notify)
}
