package podsource

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// Reasons of events.
const (
	// ReasonInvalid: what a manifest says could not be read, or is invalid.
	ReasonInvalid = "InvalidManifest"
	// ReasonUnavailable: a source cannot be asked what it wants.
	ReasonUnavailable = "SourceUnavailable"
	// ReasonDuplicate: a pod or object is refused for another of its name.
	ReasonDuplicate = "DuplicateName"
)

const maxMessage = 1024 // of an event

// updateErrors compares the faults there are to those reported, and returns what is new
// and what stands no more. The caller holds m.mu.
func (m *Mux) updateErrors() (news []rejectedPod, mended []SourceError) {
	now := time.Now()
	standing := make(map[string]SourceError, len(m.reported))
	note := func(r rejectedPod) {
		r.Source = r.source
		key := r.source + "\x00" + r.Error()
		if _, twice := standing[key]; twice {
			return
		}
		if was, ok := m.reported[key]; ok {
			r.Since = was.Since
		} else {
			if r.Since.IsZero() {
				r.Since = now
			}
			news = append(news, r)
		}
		standing[key] = r.SourceError
	}
	for _, d := range m.sources {
		for _, f := range d.errors {
			note(rejectedPod{source: d.source, SourceError: f})
		}
		if f, ok := d.silent(m.began, now); ok {
			note(rejectedPod{source: d.source, SourceError: f})
		}
	}
	for _, r := range m.merged.faults {
		note(r)
	}
	for _, key := range slices.Sorted(maps.Keys(m.reported)) {
		if _, ok := standing[key]; !ok {
			mended = append(mended, m.reported[key])
		}
	}
	m.reported = standing
	return news, mended
}

// report tells of faults once: in the log, as events and to the hook.
func (m *Mux) report(ctx context.Context, news []rejectedPod, mended []SourceError) {
	for _, f := range mended {
		m.cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "a fault of what is wanted is gone",
			slog.String("where", f.Location), slog.Time("since", f.Since))
	}
	for _, r := range news {
		attrs := []slog.Attr{slog.String("source", r.source), slog.String("where", r.Location), slog.Any("error", r.Err)}
		if r.RetainedPod != nil {
			attrs = append(attrs, slog.String("keeps", podspec.FullName(r.RetainedPod)))
		}
		m.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "something is wrong with what is wanted", attrs...)
		if m.cfg.Recorder != nil {
			m.cfg.Recorder.Record(m.event(r))
		}
		if h := m.cfg.Hooks.SourceFailed; h != nil {
			h(r.source, r.SourceError)
		}
	}
}

// event makes the event of a fault: of the refused pod, of the one that is kept,
// or of the node.
func (m *Mux) event(r rejectedPod) *corev1.Event {
	reason, pod, message := ReasonInvalid, r.RetainedPod, r.Error()
	switch {
	case r.pod != nil:
		reason, pod = ReasonDuplicate, r.pod
	case errors.Is(r.Err, ErrUnavailable):
		reason = ReasonUnavailable
	}
	if r.RetainedPod != nil {
		message = "the last good version runs on: " + message
	}
	if len(message) > maxMessage {
		message = message[:maxMessage-3] + "..."
	}
	if pod != nil {
		return podspec.NewEvent(pod, corev1.EventTypeWarning, reason, message, r.Since)
	}
	return podspec.NewNodeEvent(m.cfg.NodeName, corev1.EventTypeWarning, reason, message, r.Since)
}
