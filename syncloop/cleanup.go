package syncloop

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
)

const (
	defaultRemoveTimeout = 2 * time.Minute
	// cleanupWait is how long a housekeeping waits for the cleanup of one pod. One
	// that takes longer goes on beside it, and its outcome is taken in later.
	cleanupWait = 2 * time.Second
	// maxPass is how long a housekeeping goes on beginning cleanups. The rest is
	// left to the next one.
	maxPass = 10 * time.Second
)

// errSlow is what is wrong with a pod whose cleanup goes on beside the housekeeping.
// As long as it is, nobody waits for another try.
var errSlow = errors.New("the cleanup of the pod is slow")

// cleanup removes what is left of one pod. The pod is held meanwhile: should its UID
// be wanted again, it begins after that.
type cleanup struct {
	uid      types.UID
	done     chan struct{} // closed at its end
	removals []removal     // whoever has seen done closed may read them
}

// removal is what became of the removal of a pod from one store.
type removal struct {
	store *PodStore
	err   error
}

// holdAndCleanUp removes a pod that nobody wants from stores. It reports false where
// the pod cannot be held, as it is wanted again or held already. Lives says whether
// it had a life when that was asked last: one that has begun since is left alone.
func (h *Housekeeper) holdAndCleanUp(ctx context.Context, uid types.UID, lives bool, stores []*PodStore) (again []types.UID, held bool) {
	if !h.cfg.PodManager.reserveUID(uid) {
		return nil, false
	}
	if _, now := h.cfg.Workers.State(uid); now == lives {
		return h.cleanUp(ctx, uid, stores), true
	}
	if h.cfg.PodManager.unreserveUID(uid) {
		again = append(again, uid)
	}
	return again, true
}

// cleanUp removes a pod, which is held, from stores, and waits for that unless it is
// known to be slow. It returns the pod if that has ended and it has to be added now.
func (h *Housekeeper) cleanUp(ctx context.Context, uid types.UID, stores []*PodStore) (again []types.UID) {
	c := &cleanup{uid: uid, done: make(chan struct{})}
	h.cleanups[uid] = c
	h.wg.Go(func() {
		defer close(c.done)
		for _, store := range stores {
			c.removals = append(c.removals, removal{store, h.remove(ctx, store, uid)})
		}
	})
	wait := cleanupWait
	if _, slow := h.lastErrors[faultKey{"", uid}]; slow {
		wait = 0
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.done:
		return h.cleanedUp(c)
	case <-timer.C:
		h.logFailure("", uid, errSlow)
	}
	return nil
}

func (h *Housekeeper) remove(ctx context.Context, store *PodStore, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.RemoveTimeout)
	defer cancel()
	return safe.Call(h.cfg.Logger, "remove pod from "+store.Name, func() error { return store.Remove(ctx, uid) })
}

// takeCleanedUp takes in the cleanups that have ended since, and returns the pods
// that have to be added now.
func (h *Housekeeper) takeCleanedUp() (again []types.UID) {
	for _, c := range h.cleanups {
		select {
		case <-c.done:
			again = append(again, h.cleanedUp(c)...)
		default:
		}
	}
	return again
}

// cleanedUp takes in what became of a cleanup. What a pod left goes before its life
// is forgotten; one that is wanted again begins anew whatever is still left.
func (h *Housekeeper) cleanedUp(c *cleanup) (again []types.UID) {
	delete(h.cleanups, c.uid)
	ok := true
	for _, r := range c.removals {
		ok = r.err == nil && ok
		h.logFailure(r.store.Name, c.uid, r.err)
		if f := h.cfg.Hooks.StoreCleaned; f != nil {
			f(r.store.Name, c.uid, r.err)
		}
	}
	if ok {
		h.logFailure("", c.uid, nil)
	}
	back := h.cfg.PodManager.unreserveUID(c.uid)
	if _, lives := h.cfg.Workers.State(c.uid); lives && (ok || back) {
		back = h.cfg.Workers.ForgetFinished(c.uid, false) || back
	}
	if back {
		again = append(again, c.uid)
	}
	return again
}

// Wait returns when no cleanup is under way any more. It is for the end: those that
// heed the end of their context end with it.
func (h *Housekeeper) Wait() { h.wg.Wait() }

// forgetFaults drops what went wrong with pods of which there is nothing left, and
// with those that are wanted again.
func (h *Housekeeper) forgetFaults(s *snapshot) {
	if len(h.lastErrors) == 0 {
		return
	}
	left := map[faultKey]struct{}{}
	unread := map[string]bool{}
	for _, st := range s.stores {
		name := h.cfg.Stores[st.store].Name
		unread[name] = st.err != nil
		unread[""] = unread[""] || st.err != nil
		for _, uid := range st.uids {
			left[faultKey{name, uid}] = struct{}{}
			left[faultKey{"", uid}] = struct{}{}
		}
	}
	for key := range h.lastErrors {
		_, known := left[key]
		_, wanted := s.desired[key.uid]
		if key.uid != "" && h.cleanups[key.uid] == nil && (wanted || !known && !unread[key.store]) {
			delete(h.lastErrors, key)
		}
	}
}
