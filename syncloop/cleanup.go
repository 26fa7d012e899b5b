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
	// cleanupTimeout is how long housekeeping waits for the cleanup of one pod. A slower
	// one continues in its goroutine, and a later pass collects its result.
	cleanupTimeout = 2 * time.Second
	// maxPass is how long one pass of housekeeping starts cleanups. The next pass
	// continues.
	maxPass = 10 * time.Second
)

// errSlowCleanup is recorded for a pod whose cleanup has not returned in time. No pass
// waits for another cleanup of such a pod.
var errSlowCleanup = errors.New("the cleanup of the pod is slow")

// cleanup removes the resources of one pod. Its UID is reserved meanwhile: a new pod of
// the UID starts after it.
type cleanup struct {
	uid      types.UID
	done     chan struct{} // closed at the end
	removals []removal     // may be read after done was closed
}

// removal is the result of the removal of a pod from one store.
type removal struct {
	store *PodStore
	err   error
}

// reserveAndCleanUp removes a pod that is not desired from stores. It returns false if
// the UID cannot be reserved, because the pod is desired again or a cleanup of it runs.
// known is whether the workers knew the pod before: a pod that has started since is left
// alone.
func (h *Housekeeper) reserveAndCleanUp(ctx context.Context, uid types.UID, known bool, stores []*PodStore) (recreated []types.UID, reserved bool) {
	if !h.cfg.PodManager.reserveUID(uid) {
		return nil, false
	}
	if _, knownNow := h.cfg.Workers.State(uid); knownNow == known {
		return h.cleanUp(ctx, uid, stores), true
	}
	if h.cfg.PodManager.unreserveUID(uid) {
		recreated = append(recreated, uid)
	}
	return recreated, true
}

// cleanUp removes a pod, whose UID is reserved, from stores. It waits for the result
// unless an earlier cleanup of the pod was slow. It returns the pod if it must be added
// now.
func (h *Housekeeper) cleanUp(ctx context.Context, uid types.UID, stores []*PodStore) (recreated []types.UID) {
	c := &cleanup{uid: uid, done: make(chan struct{})}
	h.cleanups[uid] = c
	h.wg.Go(func() {
		defer close(c.done)
		for _, store := range stores {
			c.removals = append(c.removals, removal{store, h.remove(ctx, store, uid)})
		}
	})
	timeout := cleanupTimeout
	if _, slow := h.lastErrors[errorKey{"", uid}]; slow {
		timeout = 0
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-c.done:
		return h.collectCleanup(c)
	case <-timer.C:
		h.logFailure("", uid, errSlowCleanup)
	}
	return nil
}

func (h *Housekeeper) remove(ctx context.Context, store *PodStore, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.RemoveTimeout)
	defer cancel()
	return safe.Call(h.cfg.Logger, "remove pod from "+store.Name, func() error { return store.Remove(ctx, uid) })
}

// collectCleanups collects the results of the cleanups that have ended, and returns the
// pods that must be added now.
func (h *Housekeeper) collectCleanups() (recreated []types.UID) {
	for _, c := range h.cleanups {
		select {
		case <-c.done:
			recreated = append(recreated, h.collectCleanup(c)...)
		default:
		}
	}
	return recreated
}

// collectCleanup handles the result of a cleanup. The worker state of a pod is forgotten
// after its resources were removed. A pod that is desired again starts even if some are
// left.
func (h *Housekeeper) collectCleanup(c *cleanup) (recreated []types.UID) {
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
	desired := h.cfg.PodManager.unreserveUID(c.uid)
	if _, known := h.cfg.Workers.State(c.uid); known && (ok || desired) {
		desired = h.cfg.Workers.ForgetFinished(c.uid, false) || desired
		h.handled[c.uid] = time.Now() // the next pass drops it if it is not in the runtime
	}
	if desired {
		recreated = append(recreated, c.uid)
	}
	return recreated
}

// Wait returns when no cleanup runs any more. Cleanups end with the context of the call
// that has started them, if their stores respect it.
func (h *Housekeeper) Wait() { h.wg.Wait() }

// forgetErrors drops the errors of pods of which nothing is left, and of those that are
// desired again.
func (h *Housekeeper) forgetErrors(s *snapshot) {
	if len(h.lastErrors) == 0 {
		return
	}
	left := map[errorKey]struct{}{}
	unread := map[string]bool{}
	for _, st := range s.stores {
		name := h.cfg.Stores[st.store].Name
		unread[name] = st.err != nil
		unread[""] = unread[""] || st.err != nil
		for _, uid := range st.uids {
			left[errorKey{name, uid}] = struct{}{}
			left[errorKey{"", uid}] = struct{}{}
		}
	}
	for key := range h.lastErrors {
		_, found := left[key]
		_, desired := s.desired[key.uid]
		if key.uid != "" && h.cleanups[key.uid] == nil && (desired || !found && !unread[key.store]) {
			delete(h.lastErrors, key)
		}
	}
}
