package podsync

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
)

// errUnanswered is why a SoftAdmitter was not called: its previous call for the pod has
// not returned.
var errUnanswered = errors.New("the previous call has not returned")

// lateAnswerTimeout is how long the call of a previous sync is waited for.
const lateAnswerTimeout = time.Second

// askAdmitter calls SoftAdmitter i for a pod, and bounds one that ignores its context:
// the goroutine continues until the call returns, and its result is dropped. Until then
// the admitter is not called for this pod again. A panic is returned as an error.
func (s *Syncer) askAdmitter(ctx context.Context, i int, pod *corev1.Pod, st *podState) (podspec.AdmitResult, error) {
	if err := st.awaitAnswer(ctx, i); err != nil {
		return podspec.AdmitResult{}, err
	}
	var (
		result podspec.AdmitResult
		err    error
		done   = make(chan struct{})
	)
	go func() {
		defer close(done)
		err = safe.Call(s.cfg.Logger, "admit pod "+podspec.FullName(pod), func() (err error) {
			result, err = s.cfg.SoftAdmitters[i].Admit(ctx, pod)
			return err
		})
	}()
	select {
	case <-done:
		return result, err
	case <-ctx.Done():
		if st.unanswered == nil {
			st.unanswered = map[int]chan struct{}{}
		}
		st.unanswered[i] = done
		return podspec.AdmitResult{}, context.Cause(ctx)
	}
}

// awaitAnswer returns nil if no call of SoftAdmitter i is under way. It waits a moment
// for one that is.
func (st *podState) awaitAnswer(ctx context.Context, i int) error {
	timeout := time.NewTimer(lateAnswerTimeout)
	defer timeout.Stop()
	if previous := st.unanswered[i]; previous != nil {
		select {
		case <-previous:
			delete(st.unanswered, i)
		case <-timeout.C:
			return errUnanswered
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
