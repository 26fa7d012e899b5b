package pleg

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// health tracks the relists of the runtime. The Generator's mu guards it.
type health struct {
	listed         time.Time // start of the newest relist that succeeded
	unhealthySince time.Time // since when no relist has succeeded; zero: the last one did
	listingSince   time.Time // start of the relist under way; zero: there is none
	listErr        error     // of the last relist
	warnedAt       time.Time // when a failure was last logged; zero: the last relist succeeded
}

// warnPeriod is the period at which a persisting failure is logged. A runtime that
// is unavailable is queried every second.
const warnPeriod = time.Minute

// relistStarted records the start of a relist.
func (h *health) relistStarted(g *Generator, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h.listingSince = at
	if h.unhealthySince.IsZero() {
		h.unhealthySince = at
	}
}

// relistFailed records a failed relist and reports whether to log it.
func (h *health) relistFailed(g *Generator, err error) (warn bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h.listingSince, h.listErr = time.Time{}, err
	now := time.Now()
	if warn = now.Sub(h.warnedAt) >= warnPeriod; warn {
		h.warnedAt = now
	}
	return warn
}

// hasWarned reports whether a failure was logged and no relist has succeeded
// since.
func (h *health) hasWarned(g *Generator) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !h.warnedAt.IsZero()
}

// relistSucceeded records a successful relist that started at the given time. The
// caller holds mu.
func (h *health) relistSucceeded(at time.Time) {
	*h = health{listed: at}
}

// Healthy returns an error if no relist has succeeded for Config.RelistThreshold
// although one was due. The error contains the failure of the last relist, or how
// long the one under way has taken. Pods whose inspection fails do not make the
// Generator unhealthy: see InspectionErrors.
func (g *Generator) Healthy() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := &g.health
	if h.unhealthySince.IsZero() || g.stopped {
		return nil
	}
	now := time.Now()
	age := now.Sub(h.unhealthySince)
	switch {
	case age < g.cfg.RelistThreshold:
		return nil
	case h.listErr != nil:
		return fmt.Errorf("no relist for %s: %w", age.Round(time.Second), h.listErr)
	default:
		return fmt.Errorf("no relist for %s: listing pods has not returned since %s",
			age.Round(time.Second), now.Sub(h.listingSince).Round(time.Second))
	}
}

// Uninspected returns the pods that a relist has found and no inspection has
// succeeded for yet, in no particular order.
func (g *Generator) Uninspected() []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	var uids []types.UID
	for _, r := range g.pods {
		if r.isUninspected() {
			uids = append(uids, r.uid)
		}
	}
	return uids
}

// IsRunning reports whether the pod has a container that could be running or a ready
// sandbox, as far as is known without asking the runtime. A pod that Uninspected
// contains counts as running: a running pod is never taken for a stopped one because
// the runtime is slow.
func (g *Generator) IsRunning(uid types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.pods[uid]
	return r != nil && (r.isUninspected() || r.observed.CouldHaveRunningContainers() || r.observed.ReadySandbox() != nil)
}

func (r *podRecord) isUninspected() bool { return r.relistSeq > 0 && r.observedAt.IsZero() }

// InspectionError is a pod whose inspection fails or is slow.
type InspectionError struct {
	UID   types.UID
	Since time.Time // start of the first inspection that failed or has not returned
	Err   error     // of the last failed inspection; nil if none has returned yet
}

// Error returns the error of the last failed inspection.
func (e InspectionError) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return fmt.Sprintf("inspect pod %s: no answer yet", e.UID)
}

// Unwrap returns Err.
func (e InspectionError) Unwrap() error { return e.Err }

// InspectionErrors returns the pods whose inspection fails or is slow, sorted by
// UID.
func (g *Generator) InspectionErrors() []InspectionError {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []InspectionError
	for _, r := range g.pods {
		if !r.failingSince.IsZero() {
			errs = append(errs, InspectionError{r.uid, r.failingSince, r.err})
		}
	}
	slices.SortFunc(errs, func(a, b InspectionError) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return errs
}
