package podsource

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/text"
	"github.com/sublet-dev/agent/podspec"
)

// Reasons of events.
const (
	// ReasonInvalid is the reason for a manifest that is unreadable or invalid.
	ReasonInvalid = "InvalidManifest"
	// ReasonUnavailable is the reason for a source that cannot be queried.
	ReasonUnavailable = "SourceUnavailable"
	// ReasonDuplicate is the reason for a pod or object that is rejected because
	// another one has its name.
	ReasonDuplicate = "DuplicateName"
)

const maxMessage = 1024 // of an event

// updateErrors compares the current errors with those reported before and returns the
// new and the resolved ones. An error that has become another one of the same place is not
// resolved: that is what an editor that saves in steps does to an invalid manifest.
// held: m.mu
func (m *Mux) updateErrors() (added []rejectedPod, resolved []SourceError) {
	now := time.Now()
	current := make(map[string]SourceError, len(m.reported))
	failing := make(map[[2]string]bool)
	add := func(r rejectedPod) {
		r.Source = r.source
		failing[[2]string{r.source, r.Location}] = true
		key := r.source + "\x00" + r.Error()
		if _, ok := current[key]; ok {
			return
		}
		if previous, ok := m.reported[key]; ok {
			r.Since = previous.Since
		} else {
			if r.Since.IsZero() {
				r.Since = now
			}
			added = append(added, r)
		}
		current[key] = r.SourceError
	}
	for _, d := range m.sources {
		for _, e := range d.errors {
			add(rejectedPod{source: d.source, SourceError: e})
		}
		if e, ok := d.unsyncedError(m.startTime, now); ok {
			add(rejectedPod{source: d.source, SourceError: e})
		}
	}
	for _, r := range m.merged.rejected {
		add(r)
	}
	for _, key := range slices.Sorted(maps.Keys(m.reported)) {
		if e := m.reported[key]; !failing[[2]string{e.Source, e.Location}] {
			resolved = append(resolved, e)
		}
	}
	m.reported = current
	return added, resolved
}

// report logs new and resolved errors, and passes new ones to the Recorder and the hook.
// The event of a pod that is to be rejected is left to who rejects it.
func (m *Mux) report(ctx context.Context, added []rejectedPod, resolved []SourceError) {
	for _, e := range resolved {
		m.cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "source error resolved",
			slog.String("source", e.Source), slog.String("location", e.Location), slog.Time("since", e.Since))
	}
	for _, r := range added {
		attrs := []slog.Attr{slog.String("source", r.source), slog.String("location", r.Location), logattr.Err(r.Err)}
		if r.RetainedPod != nil {
			attrs = append(attrs, slog.String("retainedPod", podspec.FullName(r.RetainedPod)))
		}
		m.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "source error", attrs...)
		if m.cfg.Recorder != nil && r.RejectedPod == nil {
			m.cfg.Recorder.Record(m.event(r))
		}
		if h := m.cfg.Hooks.SourceFailed; h != nil {
			h(r.source, r.SourceError)
		}
	}
}

// event returns the event of an error. It is about the rejected pod, the retained pod
// or the node.
func (m *Mux) event(r rejectedPod) *corev1.Event {
	reason, pod, message := ReasonInvalid, r.RetainedPod, r.Error()
	switch {
	case r.pod != nil:
		reason, pod = ReasonDuplicate, r.pod
	case errors.Is(r.Err, ErrUnavailable):
		reason = ReasonUnavailable
	}
	if r.RetainedPod != nil {
		message = "the last valid version keeps running: " + message
	}
	message = text.Clip(message, maxMessage, "...")
	if pod != nil {
		return podspec.NewEvent(pod, corev1.EventTypeWarning, reason, message, r.Since)
	}
	return podspec.NewNodeEvent(m.cfg.NodeName, corev1.EventTypeWarning, reason, message, r.Since)
}
