package podsource

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// maxUnsynced is how long a source may deliver neither a Set nor an error before that is
// reported as an error.
const maxUnsynced = 2 * time.Minute

// Unsynced is a source whose desired pods are not known, neither from the source nor
// from a cache.
type Unsynced struct {
	Source string
	Since  time.Time // start of the Mux
	Err    error     // why it has not delivered a Set; nil if unknown
}

// Error returns the name of the source, since when it is waited for, and why.
func (u Unsynced) Error() string {
	text := fmt.Sprintf("waiting for source %s (since %s", u.Source, u.Since.Format(time.DateTime))
	if u.Err != nil {
		text += ", last error: " + u.Err.Error()
	}
	return text + ")"
}

// Unwrap returns Err.
func (u Unsynced) Unwrap() error { return u.Err }

// Unsynced returns the sources that have not synced, in their order. Until they have,
// running pods of these sources may still be desired, and terminated ones are not
// restarted.
func (m *Mux) Unsynced() []Unsynced {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := m.startTime
	if since.IsZero() { // Run has not been called
		since = time.Now()
	}
	var list []Unsynced
	for _, d := range m.sources {
		if err, unsynced := d.unsynced(); unsynced {
			list = append(list, Unsynced{Source: d.source, Since: since, Err: err})
		}
	}
	return list
}

// WhyUnsynced returns what is waited for before it is known whether the pod of a previous
// process is desired, as text.
func (m *Mux) WhyUnsynced(pod *corev1.Pod) string {
	for _, u := range m.Unsynced() {
		if u.Source == pod.Annotations[podspec.AnnotationSource] {
			return u.Error()
		}
	}
	return "no source has delivered the pod yet"
}

// Healthy returns nil if all sources have synced, else all of Unsynced, joined.
func (m *Mux) Healthy() error {
	var errs []error
	for _, u := range m.Unsynced() {
		errs = append(errs, u)
	}
	return errors.Join(errs...)
}

// FirstUnsynced returns the first of Unsynced as an error, or nil if all sources have
// synced.
func (m *Mux) FirstUnsynced() error {
	if list := m.Unsynced(); len(list) > 0 {
		return list[0]
	}
	return nil
}

// unsynced reports whether the source has delivered no Set, and why. A source that has
// delivered only invalid manifests has synced in this sense.
func (d *sourceState) unsynced() (err error, unsynced bool) { //nolint:revive // err is a result, not a failure
	switch {
	case !d.received && len(d.errors) == 0:
		return nil, true
	case d.complete, d.cached, len(d.byManifest) > 0:
		return nil, false
	}
	for _, f := range d.errors {
		if errors.Is(f.Err, ErrUnavailable) {
			return f.Err, true
		}
	}
	return nil, len(d.errors) == 0
}

// unsyncedError returns the error of a source that has delivered neither a Set nor an
// error for maxUnsynced.
func (d *sourceState) unsyncedError(startTime, now time.Time) (SourceError, bool) {
	if d.received && !d.cached && (d.complete || len(d.byManifest) > 0) || len(d.errors) > 0 || startTime.IsZero() || now.Sub(startTime) < maxUnsynced {
		return SourceError{}, false
	}
	text := "source has not delivered its pods yet; its running pods are left alone until it does"
	if d.cached {
		text = "source has not delivered its pods yet; its cached pods are used until it does"
	}
	return SourceError{Location: "source " + d.source, Err: fmt.Errorf("%w: %s", ErrUnavailable, text), Since: startTime}, true
}
