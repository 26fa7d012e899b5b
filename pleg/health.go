package pleg

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// health is what is known of the runtime's answers. The Generator's mu guards it.
type health struct {
	listed  time.Time // when the newest listing that was answered began
	waiting time.Time // since when no listing was answered; zero: the last one was
	calling time.Time // when the listing under way began; zero: none is
	listErr error     // of the last listing
	warned  time.Time // when a failure was logged last; zero: the last listing was answered
}

// warnAgain is how often a failure that goes on is logged. A runtime that is away is
// asked each second.
const warnAgain = time.Minute

func (h *health) begin(now time.Time) { h.waiting = now }

// listing takes note that a listing begins.
func (h *health) listing(g *Generator, began time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h.calling = began
	if h.waiting.IsZero() {
		h.waiting = began
	}
}

// failed takes note of a listing that failed, and reports whether to log that.
func (h *health) failed(g *Generator, err error) (warn bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h.calling, h.listErr = time.Time{}, err
	now := time.Now()
	if warn = h.warned.IsZero() || now.Sub(h.warned) >= warnAgain; warn {
		h.warned = now
	}
	return warn
}

// failing reports whether a failure was logged and no listing was answered since.
func (h *health) failing(g *Generator) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !h.warned.IsZero()
}

// answered takes note of a listing's answer. The caller holds mu.
func (h *health) answered(began time.Time) {
	*h = health{listed: began}
}

// Healthy returns an error when the runtime has not listed its pods for the
// time given by Config.Silence, though asked to. It names the call that hangs or
// how it failed. Pods that cannot be inspected are no fault of the runtime's as
// long as it lists them: see Faults.
func (g *Generator) Healthy() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := &g.health
	if h.waiting.IsZero() || g.stopped {
		return nil
	}
	now := time.Now()
	silent := now.Sub(h.waiting)
	switch {
	case silent < g.cfg.RelistThreshold:
		return nil
	case h.listErr != nil:
		return fmt.Errorf("runtime has not answered for %s: %w", silent.Round(time.Second), h.listErr)
	default:
		return fmt.Errorf("runtime has not answered for %s: list pods hangs since %s",
			silent.Round(time.Second), now.Sub(h.calling).Round(time.Second))
	}
}

// Uninspected returns the pods that are in the runtime by its listings and that no
// inspection has shown yet.
func (g *Generator) Uninspected() []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	var unseen []types.UID
	for _, r := range g.pods {
		if r.unseen() {
			unseen = append(unseen, r.uid)
		}
	}
	return unseen
}

// IsUnseen reports whether the pod is one of Unseen.
func (g *Generator) IsUnseen(uid types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.pods[uid]
	return r != nil && r.unseen()
}

func (r *podRecord) unseen() bool { return r.relistSeq > 0 && r.observedAt.IsZero() }

// InspectionError is a pod that cannot be inspected.
type InspectionError struct {
	UID   types.UID
	Since time.Time // when the first inspection began that failed or hangs
	Err   error     // of the last one that ended; nil: the first one hangs
}

// Error tells what is wrong with the pod's inspection.
func (f InspectionError) Error() string {
	if f.Err != nil {
		return f.Err.Error()
	}
	return fmt.Sprintf("inspect pod %s: no answer yet", f.UID)
}

// Unwrap returns Err.
func (f InspectionError) Unwrap() error { return f.Err }

// InspectionErrors returns the pods whose inspection hangs or failed, by UID.
func (g *Generator) InspectionErrors() []InspectionError {
	g.mu.Lock()
	defer g.mu.Unlock()
	var faults []InspectionError
	for _, r := range g.pods {
		if !r.since.IsZero() {
			faults = append(faults, InspectionError{r.uid, r.since, r.err})
		}
	}
	slices.SortFunc(faults, func(a, b InspectionError) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return faults
}
