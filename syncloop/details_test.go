package syncloop

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// SL-6: each failure of a store is logged once, and again after it was resolved.
func TestHousekeeper_LogsFailuresOnce(t *testing.T) {
	var log strings.Builder
	h := newHousekeeperEnv(t)
	h.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	failures := func(passes int) int {
		log.Reset()
		for range passes {
			h.CleanupPods(t.Context())
		}
		return strings.Count(log.String(), `msg="removing orphaned pod resources failed" store=things`)
	}
	h.stored["x"] = errors.New("busy")
	assert.Equal(t, 1, failures(3))
	h.stored["x"] = errors.New("still busy")
	assert.Equal(t, 1, failures(3))
	h.stored["x"] = nil
	assert.Zero(t, failures(2))
	assert.Empty(t, h.lastErrors, "resolved")

	list := h.cfg.Stores[0].PodUIDs
	h.stored["x"] = errors.New("busy")
	require.Equal(t, 1, failures(1))
	h.cfg.Stores[0].PodUIDs = func() ([]types.UID, error) { return nil, errors.New("unreadable") }
	assert.Equal(t, 1, failures(2))
	assert.Contains(t, log.String(), "err=unreadable")
	assert.Len(t, h.lastErrors, 2, "the failed removal is kept while the store cannot be read")
	h.cfg.Stores[0].PodUIDs = list
	delete(h.stored, "x")
	assert.Zero(t, failures(1))
	assert.Empty(t, h.lastErrors, "nothing is left of the pod")
}

// SL-6: a pod that has started since the snapshot is left alone.
func TestHousekeeper_PodStartedMeanwhile(t *testing.T) {
	h := newHousekeeperEnv(t)
	h.stored["x"] = nil
	recreated, reserved := h.reserveAndCleanUp(t.Context(), "x", true, h.stores())
	assert.Empty(t, recreated)
	assert.True(t, reserved)
	assert.Empty(t, h.w.take())
	assert.Empty(t, h.pods.reservedUIDs)

	h.pods.do(podsource.Add, newPod("x"))
	_, reserved = h.reserveAndCleanUp(t.Context(), "x", false, h.stores())
	assert.False(t, reserved, "it is desired")
}

// AG-9: panics of hooks and of the recorder are logged only.
func TestHooksPanic(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) {
		c.Admitters = []Admitter{podLimit(1)}
		c.Recorder = panickingRecorder{}
		c.Hooks = PodManagerHooks{
			Admitted: func(*Pod) { panic("admitted") }, Rejected: func(*Pod, string, string) { panic("rejected") },
		}
	})
	assert.Equal(t, []string{"create a ", "refuse b: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("a"), newPod("b")))

	orphans := 0
	h, err := NewHousekeeper(HousekeeperConfig{
		Workers: p.w, PodManager: p.PodManager, Sources: &fakeSources{}, PodCache: podList(func() []runtime.Pod { return []runtime.Pod{runtimePod("o", "file")} }),
		Hooks: HousekeeperHooks{OrphanFound: func(runtime.Pod) { orphans++; panic("orphan") }},
	})
	require.NoError(t, err)
	h.CleanupPods(t.Context())
	assert.Equal(t, 1, orphans)
	assert.Equal(t, []string{"orphan o"}, p.w.take())
}

type panickingRecorder struct{}

func (panickingRecorder) Record(*corev1.Event) { panic("recorder") }

// SL-3: the hook is called once per reason.
func TestPodManager_RejectedHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reasons []string
		p, admitter := newSwitchedPods(t, func(c *PodManagerConfig) {
			c.Hooks.Rejected = func(_ *Pod, reason, _ string) { reasons = append(reasons, reason) }
		})
		p.do(podsource.Add, newPod("a", static))
		p.after(time.Hour)
		assert.Equal(t, []string{"NoLicence"}, reasons)
		admitter.reason = "Other"
		p.after(time.Hour)
		assert.Equal(t, []string{"NoLicence", "Other"}, reasons)
	})
}

// SL-3: running pods come first, both groups in the order of creation.
func TestPodManager_InOrder(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) {
		c.Inspector = running(func(uid types.UID) bool { return strings.HasPrefix(string(uid), "r") })
	})
	var uids []types.UID
	for _, pod := range p.inOrder([]*Pod{newPod("r2", created(40)), newPod("b", created(20)), newPod("r1", created(30)), newPod("a", created(20))}) {
		uids = append(uids, pod.UID)
	}
	assert.Equal(t, []types.UID{"r1", "r2", "a", "b"}, uids)
}

// PW-10: a removed pod is remembered until it is added again or removedTTL has passed.
func TestPodManager_RemembersRemovedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPods(t)
		p.do(podsource.Add, newPod("a"), newPod("b"))
		p.do(podsource.Remove, newPod("a"), newPod("b"))
		p.do(podsource.Add, newPod("a"))
		assert.NotContains(t, p.removed, types.UID("a"))
		assert.Contains(t, p.removed, types.UID("b"))
		for range 12 {
			time.Sleep(removedTTL / 10)
			p.do(podsource.Update, newPod("a"))
		}
		assert.Empty(t, p.removed)
		assert.Equal(t, []string{"create b "}, p.do(podsource.Add, newPod("b")), "as if it had never been there")
	})
}

// SL-9: the resources of the pod are resized like those of its containers, and a removed
// pod has no pending resize.
func TestPodManager_PodLevelResources(t *testing.T) {
	podResources := func(cpu, memory string) func(*Pod) {
		return func(p *Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
			}}
		}
	}
	var log strings.Builder
	p, admitter := newSwitchedPods(t, func(c *PodManagerConfig) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	admitter.reason = ""
	p.do(podsource.Add, newPod("a", podResources("1", "1Gi")))
	admitter.reason = "NoLicence"
	for range 2 {
		p.do(podsource.Update, newPod("a", podResources("1", "2Gi")))
	}
	assert.Equal(t, "1Gi", p.get("a").pod.Spec.Resources.Requests.Memory().String())
	assert.Equal(t, 1, strings.Count(log.String(), `msg="pod resize deferred" pod=ns/a podUID=a reason=Deferred message="not now"`))
	p.do(podsource.Update, newPod("a", podResources("1", "1Gi")))
	assert.Empty(t, p.pendingResizes, "the same resources need no admission")
	p.do(podsource.Update, newPod("a", podResources("2", "1Gi")))
	assert.Len(t, p.pendingResizes, 1)
	p.do(podsource.Remove, newPod("a"))
	assert.Empty(t, p.pendingResizes)
}

// SL-2: the health of a runtime at its limits.
func TestRuntimeHealth(t *testing.T) {
	now := time.Now()
	var h runtimeHealth
	require.EqualError(t, h.evaluate(now, time.Second), "container runtime not ready: no status received yet")
	h.record(check{at: now})
	require.NoError(t, h.evaluate(now.Add(time.Second), time.Second), "ready up to the threshold")
	require.ErrorContains(t, h.evaluate(now.Add(time.Second+1), time.Second), "no status since "+now.Format(time.TimeOnly))
	h.record(check{at: now, err: errors.New("no socket")})
	require.EqualError(t, h.evaluate(now.Add(time.Minute), time.Second), "container runtime not ready: no socket")
}

// SL-11: postponed work is retried once per housekeeping period while the runtime is
// ready, and once a minute if there is none. The log has each change of its readiness.
func TestLoop_RevisitsWhileRuntimeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		handler := &countingHandler{}
		var failure atomic.Pointer[error] // read beside the test
		l, err := New(Config{
			Changes: make(chan podsource.Change), Handler: handler, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			RuntimeState: readyFunc(func() error {
				if err := failure.Load(); err != nil {
					return *err
				}
				return nil
			}),
		})
		require.NoError(t, err)
		require.ErrorContains(t, l.Healthy(), "Run was not called")
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error)
		go func() { stopped <- l.Run(ctx) }()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		assert.EqualValues(t, 5, handler.revisits.Load())
		handler.done.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 6, handler.revisits.Load())
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 7, handler.revisits.Load())
		handler.done.Store(false)
		down := errors.New("no socket")
		failure.Store(&down)
		time.Sleep(time.Minute)
		synctest.Wait()
		atFailure := handler.revisits.Load()
		time.Sleep(time.Minute)
		cancel()
		require.NoError(t, <-stopped)
		assert.Equal(t, atFailure, handler.revisits.Load())
		assert.Equal(t, 1, strings.Count(log.String(), `level=INFO msg="runtime ready"`))
		assert.Equal(t, 1, strings.Count(log.String(), `level=WARN msg="runtime not ready" err="container runtime not ready: no socket"`))
	})
}

// readyFunc is a RuntimeState that is only polled.
type readyFunc func() error

func (f readyFunc) Ready(context.Context) error { return f() }
func (readyFunc) Recheck() <-chan struct{}      { return nil }

type countingHandler struct {
	revisits atomic.Int32
	done     atomic.Bool // nothing is left to be retried
}

func (*countingHandler) HandlePodChange(podsource.Change)                  {}
func (*countingHandler) HandlePodSync(types.UID, podworkers.RequeueReason) {}
func (*countingHandler) HandlePodRecreations([]types.UID)                  {}
func (h *countingHandler) Revisit([]types.UID) time.Time {
	h.revisits.Add(1)
	if h.done.Load() {
		return time.Time{}
	}
	return time.Now()
}
