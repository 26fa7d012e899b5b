package syncloop

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

// lockedHandler lets a test read the state of a PodManager that a Loop calls, and counts the
// passes of housekeeping.
type lockedHandler struct {
	mu sync.Mutex
	*pods
	passes int
}

func (h *lockedHandler) locked(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *lockedHandler) HandlePodChange(c podsource.Change) {
	h.locked(func() { h.PodManager.HandlePodChange(c) })
}

func (h *lockedHandler) HandlePodSync(uid types.UID, why podworkers.RequeueReason) {
	h.locked(func() { h.PodManager.HandlePodSync(uid, why) })
}

func (h *lockedHandler) HandlePodRecreations(uids []types.UID) {
	h.locked(func() { h.PodManager.HandlePodRecreations(uids) })
}

func (h *lockedHandler) Revisit(finished []types.UID) (retryAt time.Time) {
	h.locked(func() {
		if len(finished) == 0 {
			h.passes++
		}
		retryAt = h.PodManager.Revisit(finished)
	})
	return retryAt
}

// SL-6, SL-9, SL-11: pods that wait for resources cause no more housekeeping than their retries
// need. They get what other pods free at once, and what nothing announces with the next retry.
func TestLoop_RetriesWithoutPolling(t *testing.T) {
	lacking := false // guarded by the mutex of the handler
	change := func(op podsource.Op, p *Pod) podsource.Change {
		return podsource.Change{Op: op, Source: "test", Pods: []*Pod{p}}
	}
	resize := func(cpu string) func(h *lockedHandler) {
		return func(h *lockedHandler) { h.HandlePodChange(change(podsource.Update, newPod("a", asking(cpu)))) }
	}
	has := func(want string) func(*testing.T, *lockedHandler) {
		return func(t *testing.T, h *lockedHandler) { t.Helper(); assert.Equal(t, want, h.has(t, "a")) }
	}
	for name, tt := range map[string]struct {
		prepare func(h *lockedHandler)
		passes  int // in ten minutes at most; ten of them need no reason
		free    func(b *loopEnv, h *lockedHandler)
		within  time.Duration
		check   func(t *testing.T, h *lockedHandler)
	}{
		"deferred resize, another ends": {resize("3"), 21, func(b *loopEnv, h *lockedHandler) {
			h.locked(func() { h.w.states["b"] = podworkers.State{UID: "b", Phase: podworkers.Finished, Idle: true} })
			b.podFinished("b")
		}, 0, has("3")},
		"deferred resize, another is resized": {resize("3"), 21, func(b *loopEnv, _ *lockedHandler) {
			b.changes <- change(podsource.Update, newPod("b", asking("1")))
		}, 0, has("3")},
		"deferred resize, nothing announces it": {func(h *lockedHandler) { lacking = true; resize("2")(h) }, 21, func(_ *loopEnv, h *lockedHandler) {
			h.locked(func() { lacking = false })
		}, resizeRetryPeriod + 2*time.Second, has("2")},
		"infeasible resize": {resize("5"), 21, func(*loopEnv, *lockedHandler) {}, 0, has("1 Infeasible: no room for 7")},
		"rejected static pod": {
			func(h *lockedHandler) { h.HandlePodChange(change(podsource.Add, newPod("s", static, asking("2")))) }, 17,
			func(b *loopEnv, _ *lockedHandler) { b.changes <- change(podsource.Remove, newPod("b")) },
			0, func(t *testing.T, h *lockedHandler) { t.Helper(); assert.False(t, h.get("s").rejected) },
		},
		"evicted static pod under pressure": {func(h *lockedHandler) {
			lacking = true
			h.HandlePodChange(change(podsource.Add, newPod("s", static)))
			h.finishes("s", eviction)
		}, 70, func(_ *loopEnv, h *lockedHandler) {
			h.locked(func() { lacking = false })
		}, overdueRetry + 2*time.Second, func(t *testing.T, h *lockedHandler) {
			t.Helper()
			assert.Contains(t, h.w.take(), "comes back s")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lacking = false
				h := &lockedHandler{pods: newPods(t, func(c *PodManagerConfig) {
					c.Admitters = []Admitter{cores("4"), admitterFunc(func() bool { return !lacking })}
					c.UnderPressure = func() bool { return lacking }
				})}
				h.do(podsource.Add, newPod("a", asking("1")), newPod("b", asking("2")))
				b := start(t, func(b *loopEnv, c *Config) {
					c.Handler, c.Cleaner = h, &fakeCleaner{callLog: &b.log, settled: true}
				})
				tt.prepare(h)
				time.Sleep(10*time.Minute + time.Second)
				synctest.Wait()
				h.locked(func() { assert.LessOrEqual(t, h.passes, tt.passes) })
				tt.free(b, h)
				time.Sleep(tt.within)
				synctest.Wait()
				h.locked(func() { tt.check(t, h) })
				b.cancel()
				assert.NoError(t, <-b.stopped)
			})
		})
	}
}
