package podworkers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Drain ends all pods and waits until they have finished, or until ctx is done;
// its error then names the pods that have not. Run must go on meanwhile. From its
// call on the Workers keep time themselves, as whoever heeded Config.Due may be
// gone. Pods that are created during it are not ended.
func (w *Workers) Drain(ctx context.Context, k KillOptions) error {
	left := w.startTimers()
	type answer struct {
		uid types.UID
		err error
	}
	answers := make(chan answer, len(left))
	k.WaitUntilFinished = true
	for _, uid := range left {
		one := k
		one.Done = func(err error) { answers <- answer{uid, err} }
		w.RequestKill(uid, one)
	}
	var errs []error
	for len(left) > 0 {
		select {
		case a := <-answers:
			left = slices.DeleteFunc(left, func(uid types.UID) bool { return uid == a.uid })
			if a.err != nil && !errors.Is(a.err, runtime.ErrNotFound) {
				errs = append(errs, fmt.Errorf("drain pod %s: %w", a.uid, a.err))
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

// startTimers returns the pods that live, and keeps time from here on.
func (w *Workers) startTimers() []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ownTimers = true
	var uids []types.UID
	for uid, l := range w.book.pods {
		if !l.isIdle() {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}
