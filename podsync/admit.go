package podsync

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
)

// errUnanswered is why a slow check was not asked: it has not come back from when
// it was asked last.
var errUnanswered = errors.New("the check that was asked before has not answered")

// lateAnswer is how long a call of a former turn is waited for.
const lateAnswer = time.Second

// ask asks the slow check i about a pod, and bounds one that does not heed its
// context: its goroutine lives on until the check returns, and its answer goes to
// nobody. Until then it is not asked about this pod again. A panic is an error.
func (s *Syncer) ask(ctx context.Context, i int, pod *corev1.Pod, st *podState) (podspec.AdmitResult, error) {
	if err := st.answered(ctx, i); err != nil {
		return podspec.AdmitResult{}, err
	}
	var (
		v    podspec.AdmitResult
		err  error
		done = make(chan struct{})
	)
	go func() {
		defer close(done)
		err = safe.Call(s.cfg.Logger, "admit pod "+podspec.FullName(pod), func() (err error) {
			v, err = s.cfg.SoftAdmitters[i].Admit(ctx, pod)
			return err
		})
	}()
	select {
	case <-done:
		return v, err
	case <-ctx.Done():
		if st.asked == nil {
			st.asked = map[int]chan struct{}{}
		}
		st.asked[i] = done
		return podspec.AdmitResult{}, context.Cause(ctx)
	}
}

// answered returns nil if no call of the slow check i is under way, for which it
// waits a moment, and none is too late.
func (st *podState) answered(ctx context.Context, i int) error {
	late := time.NewTimer(lateAnswer)
	defer late.Stop()
	if before := st.asked[i]; before != nil {
		select {
		case <-before:
			delete(st.asked, i)
		case <-late.C:
			return errUnanswered
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
