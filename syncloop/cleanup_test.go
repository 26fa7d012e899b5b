package syncloop

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

// slowHouse is a house with a store from which some pods are removed slowly.
type slowStoreEnv struct {
	*housekeeperEnv
	mu    sync.Mutex                          // guards what follows, and the house's store
	takes map[types.UID]func(context.Context) // how long, where it takes any time
	calls map[types.UID]int
}

func (h *slowStoreEnv) with(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *slowStoreEnv) called(uid types.UID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[uid]
}

func (h *slowStoreEnv) put(uids ...types.UID) {
	h.with(func() {
		for _, uid := range uids {
			h.stored[uid] = nil
		}
	})
}

func (h *slowStoreEnv) has(uid types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.stored[uid]
	return ok
}

func newSlowStoreEnv(t *testing.T, slow types.UID, takes func(context.Context)) *slowStoreEnv {
	h := &slowStoreEnv{housekeeperEnv: newHousekeeperEnv(t), takes: map[types.UID]func(context.Context){slow: takes}, calls: map[types.UID]int{}}
	store := h.cfg.Stores[0]
	h.cfg.Stores[0].PodUIDs = func() (uids []types.UID, err error) {
		h.with(func() { uids, err = store.PodUIDs() })
		return uids, err
	}
	h.cfg.Stores[0].Remove = func(ctx context.Context, uid types.UID) (err error) {
		var takes func(context.Context)
		h.with(func() { h.calls[uid]++; takes = h.takes[uid] })
		if takes != nil {
			takes(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		h.with(func() { err = store.Remove(ctx, uid) })
		return err
	}
	return h
}

func untilDone(ctx context.Context) { <-ctx.Done() }

func takes(d time.Duration) func(context.Context) { return func(context.Context) { time.Sleep(d) } }

// SL-6: a cleanup that hangs holds up its own pod alone, and is tried again when its
// time is over.
func TestHousekeeper_HungCleanup(t *testing.T) {
	over := podworkers.State{Phase: podworkers.Finished, Idle: true}
	for _, by := range []string{"Housekeep", "Tidy"} {
		t.Run("begun by "+by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newSlowStoreEnv(t, "hung", untilDone)
				h.put("hung", "other")
				began := time.Now()
				if by == "Tidy" {
					h.w.states["hung"] = over
					assert.Empty(t, h.CleanupFinished(t.Context(), []types.UID{"hung", "other"}))
					delete(h.w.states, "hung") // housekeeping forgets it
				} else {
					recreated, settled := h.CleanupPods(t.Context())
					assert.Empty(t, recreated)
					assert.False(t, settled)
				}
				assert.False(t, h.has("other"))
				assert.LessOrEqual(t, time.Since(began), 5*time.Second)

				began = time.Now()
				h.put("late")
				_, settled := h.CleanupPods(t.Context())
				assert.False(t, settled)
				assert.False(t, h.has("late"))
				assert.Zero(t, time.Since(began), "nobody waits for a pod that is known to be slow")
				assert.Equal(t, 1, h.called("hung"), "one call at a time")

				time.Sleep(2 * time.Minute)
				synctest.Wait()
				began = time.Now()
				_, _ = h.CleanupPods(t.Context())
				assert.Zero(t, time.Since(began), "nor for its next try")
				synctest.Wait()
				assert.Equal(t, 2, h.called("hung"), "its deadline has passed")

				time.Sleep(time.Minute)
				h.with(func() { h.takes["hung"] = nil })
				time.Sleep(2 * time.Minute)
				for range 3 {
					_, _ = h.CleanupPods(t.Context())
					synctest.Wait()
				}
				assert.Empty(t, h.stored)
				_, settled = h.CleanupPods(t.Context())
				assert.True(t, settled)
			})
		})
	}
}

// SL-6: a pod that is wanted again while what it left is removed slowly waits for
// that, and for nothing else.
func TestHousekeeper_PodComesBackDuringASlowCleanup(t *testing.T) {
	for _, known := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			h := newSlowStoreEnv(t, "x", takes(time.Minute))
			h.put("x")
			if known {
				h.w.states["x"] = podworkers.State{Phase: podworkers.Finished, Idle: true}
			}
			assert.Empty(t, h.CleanupFinished(t.Context(), []types.UID{"x"}))
			h.w.take()
			h.change(podsource.Add, newPod("x"))
			for range 10 {
				recreated, _ := h.CleanupPods(t.Context())
				assert.Empty(t, recreated)
				assert.Empty(t, h.CleanupFinished(t.Context(), []types.UID{"x"}))
				time.Sleep(2 * time.Second)
			}
			assert.Empty(t, h.w.take(), "it does not begin beside the removal")
			time.Sleep(time.Minute)
			synctest.Wait()
			recreated, _ := h.CleanupPods(t.Context())
			assert.Equal(t, []types.UID{"x"}, recreated)
			delete(h.w.states, "x")
			h.w.take()
			h.pods.HandlePodRecreations(recreated)
			assert.Equal(t, []string{"create x "}, h.w.take())
			assert.Empty(t, h.pods.reservedUIDs)
		})
	}
}

// SL-6: many pods whose cleanups hang do not keep a housekeeping from ending.
func TestHousekeeper_ManyHungCleanups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := newSlowStoreEnv(t, "", nil)
		var ended []types.UID
		for _, uid := range []types.UID{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"} {
			h.put(uid)
			h.with(func() { h.takes[uid] = untilDone })
			ended = append(ended, uid)
		}
		began := time.Now()
		_, _ = h.CleanupPods(ctx)
		assert.LessOrEqual(t, time.Since(began), 15*time.Second)
		began = time.Now()
		_ = h.CleanupFinished(ctx, ended)
		assert.LessOrEqual(t, time.Since(began), 15*time.Second)
		cancel()
		h.Wait()
		assert.Len(t, h.stored, 12)
	})
}

// SL-6: what went wrong with what is gone since, or wanted again, is nothing to come
// back for.
func TestHousekeeper_ForgetsFaults(t *testing.T) {
	busy := errors.New("device or resource busy")
	for name, tt := range map[string]struct {
		then    func(h *housekeeperEnv)
		settled bool
	}{
		"it went away by itself":          {func(h *housekeeperEnv) { delete(h.stored, "x") }, true},
		"it is wanted again":              {func(h *housekeeperEnv) { h.pods.do(podsource.Add, newPod("x")) }, true},
		"it is still there":               {func(*housekeeperEnv) {}, false},
		"it cannot be told what is there": {func(h *housekeeperEnv) { h.cfg.Stores[0].PodUIDs = func() ([]types.UID, error) { return nil, busy } }, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHousekeeperEnv(t)
			h.stored["x"] = busy
			_, settled := h.CleanupPods(t.Context())
			require.False(t, settled)
			tt.then(h)
			_, _ = h.CleanupPods(t.Context())
			_, settled = h.CleanupPods(t.Context())
			assert.Equal(t, tt.settled, settled)
			if tt.settled {
				assert.Empty(t, h.lastErrors)
			}
		})
	}
}

// AG-9
func TestHousekeeper_StoreThatPanics(t *testing.T) {
	h := newHousekeeperEnv(t)
	h.stored["x"] = nil
	sound := h.cfg.Stores[0]
	h.cfg.Stores[0].Remove = func(context.Context, types.UID) error { panic("remove") }
	_, settled := h.CleanupPods(t.Context())
	assert.False(t, settled)
	assert.Empty(t, h.pods.reservedUIDs)
	h.cfg.Stores[0].PodUIDs = func() ([]types.UID, error) { panic("known") }
	_, settled = h.CleanupPods(t.Context())
	assert.False(t, settled)
	h.cfg.Stores[0] = sound
	for range 2 {
		_, settled = h.CleanupPods(t.Context())
	}
	assert.True(t, settled)
}
