package podsource

import (
	"errors"
	"fmt"
	"time"
)

// silentAfter is how long a source may say nothing, not even what keeps it from
// speaking, before that is told as a fault.
const silentAfter = 2 * time.Minute

// Unsynced is a source of which it is not known yet what it wants, neither from
// itself nor from what it said to a former process.
type Unsynced struct {
	Source string
	Since  time.Time // since when it is waited for
	Err    error     // what keeps it from speaking; nil if that is not known
}

// Error says which source is waited for, since when and why.
func (u Unsynced) Error() string {
	text := fmt.Sprintf("waiting for source %s (since %s", u.Source, u.Since.Format(time.DateTime))
	if u.Err != nil {
		text += ", last error: " + u.Err.Error()
	}
	return text + ")"
}

// Unwrap returns Err.
func (u Unsynced) Unwrap() error { return u.Err }

// Unsynced returns the sources that are waited for, in their order. While there
// are any, nobody knows whether the pods of a former process that bear their names
// are still wanted, and those that have ended are not started again. Before Run
// nothing is waited for.
func (m *Mux) Unsynced() []Unsynced {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := m.began
	if since.IsZero() { // Run has yet to begin
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

// unsynced reports whether the source has yet to speak, and what keeps it. A
// source that has told of nothing but manifests that it cannot read has spoken.
func (d *sourceState) unsynced() (err error, unsynced bool) { //nolint:revive // err belongs to unsynced, and is no failure
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

// silent is the fault of a source that has not spoken for long, and of which
// nothing else tells that.
func (d *sourceState) silent(began, now time.Time) (SourceError, bool) {
	if d.received && !d.cached && (d.complete || len(d.byManifest) > 0) || len(d.errors) > 0 || began.IsZero() || now.Sub(began) < silentAfter {
		return SourceError{}, false
	}
	text := "it has not said yet what should run; what runs of it is left alone until it does"
	if d.cached {
		text = "it has not said yet what should run; what it said last is held to until it does"
	}
	return SourceError{Location: "source " + d.source, Err: fmt.Errorf("%w: %s", ErrUnavailable, text), Since: began}, true
}
