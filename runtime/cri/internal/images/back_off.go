package images

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
)

// PullError is a pull that failed, or that waits for the end of its back-off.
type PullError struct {
	Reason string    // of statuses
	Until  time.Time // there is nothing new before
	// BackOff says that nothing was tried: the back-off runs.
	BackOff bool
	err     error
}

func (e *PullError) Error() string { return e.err.Error() }

// Unwrap returns the error of the pull.
func (e *PullError) Unwrap() error { return e.err }

// Reasons of a PullError. Runtimes have some more, see pullReason.
const (
	ReasonPullFailed  = "ErrImagePull"
	ReasonPullBackOff = "ImagePullBackOff"
)

// pullFailure is a pull that failed. While it is fresh, callers get the failure itself
// without a new try, and later the back-off. Otherwise the failure would hardly be
// visible, because a pod is often synced again right after it.
type pullFailure struct {
	err   error
	wait  time.Duration
	fresh time.Time // until then
	until time.Time // no try before
}

// failureKey is what a back-off is of. Pods that were made together share their tries all the same: their back-offs
// end together.
type failureKey struct {
	pullKey
	pod types.UID
}

// failure notes a failed pull for the pods that waited for it, and returns the error of each. p.mu is held.
func (p *Puller) failure(key pullKey, pods map[types.UID]struct{}, err error) map[types.UID]*PullError {
	now, out := time.Now(), make(map[types.UID]*PullError, len(pods))
	for pod := range pods {
		wait, of := p.cfg.Limits.BackOff, failureKey{key, pod}
		if was := p.failed[of]; was != nil {
			wait = min(2*was.wait, p.cfg.Limits.MaxBackOff)
		}
		f := &pullFailure{err: err, wait: wait, fresh: now.Add(min(wait/2, p.cfg.Limits.BackOff)), until: now.Add(wait)}
		p.failed[of] = f
		out[pod] = &PullError{Reason: pullReason(err), Until: f.fresh, err: err}
	}
	return out
}

// backOff is the error of an image in its back-off.
func (f *pullFailure) backOff(ref string, now time.Time) error {
	if now.Before(f.fresh) {
		return &PullError{Reason: pullReason(f.err), Until: f.fresh, BackOff: true, err: f.err}
	}
	return &PullError{Reason: ReasonPullBackOff, Until: f.until, BackOff: true, err: fmt.Errorf("back-off pulling image %q: %w", ref, f.err)}
}

// pullReason is the word that statuses have for a failed pull. Runtimes tell
// some of them at the beginning of their messages.
func pullReason(err error) string {
	if e, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		for _, reason := range []string{"RegistryUnavailable", "SignatureValidationFailed"} {
			if strings.Contains(e.GRPCStatus().Message(), reason) {
				return reason
			}
		}
	}
	return ReasonPullFailed
}
