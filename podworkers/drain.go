package podworkers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Drain kills all pods and waits until they have finished or ctx is done. Its error
// then names the pods that have not finished. Run must not end before. Drain resumes
// paused requeues, for good: the component that has paused them may have stopped. Pods that are
// added during Drain are not killed.
func (w *Workers) Drain(ctx context.Context, k KillOptions) error {
	left := w.startDraining()
	type result struct {
		uid types.UID
		err error
	}
	results := make(chan result, len(left))
	k.WaitUntilFinished = true
	for _, uid := range left {
		kill := k
		kill.Done = func(err error) { results <- result{uid, err} }
		w.RequestKill(uid, kill)
	}
	var errs []error
	for len(left) > 0 {
		select {
		case r := <-results:
			left = slices.DeleteFunc(left, func(uid types.UID) bool { return uid == r.uid })
			if r.err != nil {
				errs = append(errs, fmt.Errorf("drain pod %s: %w", r.uid, r.err))
			}
		case <-ctx.Done():
			for _, uid := range left {
				errs = append(errs, fmt.Errorf("drain pod %s: %w", uid, context.Cause(ctx)))
			}
			return errors.Join(errs...)
		}
	}
	return errors.Join(errs...)
}

// startDraining resumes requeues and returns the pods that are not idle, sorted by
// UID.
func (w *Workers) startDraining() []types.UID {
	w.PauseRequeues(false)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.draining = true
	var uids []types.UID
	for uid, s := range w.tracker.pods {
		if !s.isIdle() {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}
