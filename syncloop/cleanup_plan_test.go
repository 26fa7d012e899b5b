package syncloop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

type housekeeperEnv struct {
	*Housekeeper
	w               *fakeWorkers
	pods            *pods
	sources         *fakeSources
	observed        []runtime.Pod
	uninspectedUIDs []types.UID
	stored          map[types.UID]error // what the store has, and what its removal comes to
}

func newHousekeeperEnv(t *testing.T) *housekeeperEnv {
	t.Helper()
	h := &housekeeperEnv{pods: newPods(t), sources: &fakeSources{}, stored: map[types.UID]error{}}
	h.w = h.pods.w
	var err error
	h.Housekeeper, err = NewHousekeeper(HousekeeperConfig{
		Workers: h.w, PodManager: h.pods.PodManager, Sources: h.sources, PodCache: podList(func() []runtime.Pod { return h.observed }),
		Inspector: fakeInspector{uninspected: func() []types.UID { return h.uninspectedUIDs }},
		Stores: []PodStore{{
			Name: "things",
			PodUIDs: func() (uids []types.UID, err error) {
				for uid := range h.stored {
					uids = append(uids, uid)
				}
				return uids, nil
			},
			Remove: func(_ context.Context, uid types.UID) error {
				h.w.note("drop %s", uid)
				err := h.stored[uid]
				if err == nil {
					delete(h.stored, uid)
				}
				return err
			},
		}},
	})
	require.NoError(t, err)
	return h
}

// report gives a pod resources, and a report of a previous process.
func (h *housekeeperEnv) report(uid, source string) {
	pods, pod := []*Pod(nil), newPod(uid)
	if previous := h.pods.cfg.Reported; previous != nil {
		pods = previous()
	}
	pod.Annotations = map[string]string{podspec.AnnotationSource: source}
	pods = append(pods, pod)
	h.pods.cfg.Reported = func() []*Pod { return pods }
	h.stored[types.UID(uid)] = nil
}

// SL-6, SR-8: which pods are terminated and which resources are removed.
func TestHousekeeper_CleanupPods(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(h *housekeeperEnv)
		want []string
	}{
		{"nothing", func(*housekeeperEnv) {}, nil},
		{"orphan of a synced source", func(h *housekeeperEnv) { h.observed = []runtime.Pod{runtimePod("o", "file")} }, []string{"orphan o"}},
		{"orphan of a source that has not synced", func(h *housekeeperEnv) {
			h.observed = []runtime.Pod{runtimePod("o", "file")}
			h.sources.unready = map[string]bool{"file": true}
		}, nil},
		{"orphan while another source has not synced", func(h *housekeeperEnv) {
			h.observed = []runtime.Pod{runtimePod("o", "file"), runtimePod("p", "api")}
			h.sources.unready = map[string]bool{"api": true}
		}, []string{"orphan o"}},
		{"pod without a source", func(h *housekeeperEnv) { h.observed = []runtime.Pod{runtimePod("o", "")} }, nil},
		{"orphan without a sandbox", func(h *housekeeperEnv) {
			h.observed = []runtime.Pod{{UID: "o", Containers: []runtime.Container{{Annotations: map[string]string{podspec.AnnotationSource: "file"}}}}}
		}, []string{"orphan o"}},
		{"object without a source", func(h *housekeeperEnv) { h.observed = []runtime.Pod{{UID: "o", Object: newPod("o")}} }, []string{"orphan o"}},
		{"object without a source while one has not synced", func(h *housekeeperEnv) {
			h.observed = []runtime.Pod{{UID: "o", Object: newPod("o")}}
			h.sources.unready = map[string]bool{"api": true}
		}, nil},
		{"pod without sandboxes and containers", func(h *housekeeperEnv) { h.observed = []runtime.Pod{{UID: "o"}} }, nil},
		{"desired", func(h *housekeeperEnv) {
			h.pods.do(podsource.Add, newPod("o"))
			h.observed = []runtime.Pod{runtimePod("o", "file")}
		}, nil},
		{"desired, but not received by the loop yet", func(h *housekeeperEnv) {
			h.sources.pods = []*Pod{newPod("o")}
			h.observed = []runtime.Pod{runtimePod("o", "file")}
		}, nil},
		{"terminating", func(h *housekeeperEnv) {
			h.w.states["o"] = podworkers.State{Phase: podworkers.Terminating}
			h.observed = []runtime.Pod{runtimePod("o", "file")}
		}, nil},
		{"orphaned resources", func(h *housekeeperEnv) { h.stored["x"] = nil }, []string{"drop x"}},
		{"orphaned resources while a source has not synced", func(h *housekeeperEnv) {
			h.stored["x"] = nil
			h.sources.unready = map[string]bool{"api": true}
		}, nil},
		{"resources of a reported pod that its source does not contain", func(h *housekeeperEnv) {
			h.report("x", "file")
			h.report("y", "api")
			h.sources.unready = map[string]bool{"api": true}
		}, []string{"drop x"}},
		{"resources of a reported pod in the runtime", func(h *housekeeperEnv) {
			h.report("x", "file")
			h.sources.unready = map[string]bool{"api": true}
			h.observed = []runtime.Pod{runtimePod("x", "")}
		}, nil},
		{"resources of a reported pod that is desired", func(h *housekeeperEnv) {
			h.report("x", "file")
			h.sources.unready = map[string]bool{"api": true}
			h.sources.pods = []*Pod{newPod("x")}
		}, nil},
		{"resources of a reported pod that terminates", func(h *housekeeperEnv) {
			h.report("x", "file")
			h.sources.unready = map[string]bool{"api": true}
			h.w.states["x"] = podworkers.State{Phase: podworkers.Terminated}
		}, nil},
		{"resources of a pod in the runtime", func(h *housekeeperEnv) {
			h.stored["x"] = nil
			h.observed = []runtime.Pod{runtimePod("x", "")}
		}, nil},
		{"resources of an uninspected pod in the runtime", func(h *housekeeperEnv) {
			h.stored["x"] = nil
			h.uninspectedUIDs = []types.UID{"x"}
		}, nil},
		{"resources of a desired pod", func(h *housekeeperEnv) {
			h.stored["x"] = nil
			h.pods.do(podsource.Add, newPod("x"))
		}, nil},
		{"resources of a terminating pod", func(h *housekeeperEnv) {
			h.stored["x"] = nil
			h.w.states["x"] = podworkers.State{Phase: podworkers.Terminated}
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHousekeeperEnv(t)
			tt.do(h)
			h.w.take()
			recreated, settled := h.CleanupPods(t.Context())
			assert.Empty(t, recreated)
			assert.Equal(t, tt.want == nil && len(h.sources.unready) == 0, settled)
			assert.Equal(t, tt.want, h.w.take())
			assert.Equal(t, len(h.sources.unready) == 0, h.w.full)
		})
	}
}

// PW-10: housekeeping returns the pods that must be started again.
func TestHousekeeper_ReturnsRecreatedPods(t *testing.T) {
	h := newHousekeeperEnv(t)
	h.w.recreated = []types.UID{"a"}
	recreated, _ := h.CleanupPods(t.Context())
	assert.Equal(t, []types.UID{"a"}, recreated)
}

// SL-6: the resources of a finished pod are removed before it is forgotten.
func TestHousekeeper_CleanupFinished(t *testing.T) {
	h := newHousekeeperEnv(t)
	over := podworkers.State{Phase: podworkers.Finished, Idle: true}
	h.w.states["gone"], h.w.states["back"], h.w.states["alive"], h.w.states["stuck"] = over, over, podworkers.State{}, over
	h.stored["stuck"] = errors.New("busy")
	h.pods.do(podsource.Add, newPod("back"))
	h.w.take()
	recreated := h.CleanupFinished(t.Context(), []types.UID{"gone", "back", "alive", "orphan", "stuck"})
	assert.Equal(t, []types.UID{"back"}, recreated)
	assert.Equal(t, []string{
		"drop gone", "settle gone false", "settle back true",
		"drop orphan", // its worker is forgotten already
		"drop stuck",
	}, h.w.take())
}

// SL-6: a worker rarely tries to remove what is left of a pod that does not run. Meanwhile it
// is left to garbage collection, and housekeeping settles.
func TestHousekeeper_LeavesStoppedOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHousekeeperEnv(t)
		h.observed, h.stored["o"] = []runtime.Pod{runtimePod("o", "file")}, nil
		_, settled := h.CleanupPods(t.Context())
		assert.Equal(t, []string{"orphan o"}, h.w.take())
		assert.False(t, settled)

		h.CleanupPods(t.Context())
		assert.Equal(t, []string{"drop o"}, h.w.take(), "other resources are removed")
		for range 3 {
			_, settled = h.CleanupPods(t.Context())
			assert.Empty(t, h.w.take())
			assert.True(t, settled)
		}
		time.Sleep(orphanRetryPeriod)
		h.CleanupPods(t.Context())
		assert.Equal(t, []string{"orphan o"}, h.w.take(), "another attempt")
		h.CleanupPods(t.Context())
		assert.Empty(t, h.w.take())
		h.observed[0].Sandboxes[0].State = runtime.SandboxReady
		h.CleanupPods(t.Context())
		assert.Equal(t, []string{"orphan o"}, h.w.take(), "it runs")
		h.observed = nil
		h.CleanupPods(t.Context())
		assert.Empty(t, h.handled)
	})
}

// A deleted pod of which the runtime could not remove everything is no orphan.
func TestHousekeeper_LeavesDeletedPods(t *testing.T) {
	h := newHousekeeperEnv(t)
	h.observed = []runtime.Pod{runtimePod("o", "file")}
	h.w.states["o"] = podworkers.State{Phase: podworkers.Finished, Idle: true}
	h.CleanupFinished(t.Context(), []types.UID{"o"})
	assert.Equal(t, []string{"drop o", "settle o false"}, h.w.take())
	delete(h.w.states, "o")
	_, settled := h.CleanupPods(t.Context())
	assert.Empty(t, h.w.take())
	assert.True(t, settled)
}

// SL-6: a pass with a failure is followed by another.
func TestHousekeeper_NotSettledAfterFailure(t *testing.T) {
	h := newHousekeeperEnv(t)
	h.stored["x"] = errors.New("busy")
	for range 2 {
		_, settled := h.CleanupPods(t.Context())
		assert.False(t, settled)
	}
	h.stored["x"] = nil
	_, settled := h.CleanupPods(t.Context())
	assert.False(t, settled, "something was removed")
	_, settled = h.CleanupPods(t.Context())
	assert.True(t, settled)
}

// change passes a change to the PodManager.
func (h *housekeeperEnv) change(op podsource.Op, pods ...*Pod) {
	h.pods.HandlePodChange(podsource.Change{Op: op, Source: "test", Pods: pods})
}

// SL-6: a pod that is added while the resources of an earlier pod of its UID are removed
// starts once, after the removal, in its latest version.
func TestHousekeeper_PodAddedDuringCleanup(t *testing.T) {
	for _, tt := range []struct {
		name  string
		do    func(h *housekeeperEnv) // during the removal
		after func(h *housekeeperEnv) // before HandlePodRecreations
		want  []string
	}{
		{"added", func(h *housekeeperEnv) { h.change(podsource.Add, newPod("x")) }, nil, []string{"create x "}},
		{"added and changed", func(h *housekeeperEnv) {
			h.change(podsource.Add, newPod("x"))
			h.change(podsource.Update, newPod("x", inPhase(corev1.PodPending)))
		}, nil, []string{"create x Pending"}},
		{"added, removed", func(h *housekeeperEnv) {
			h.change(podsource.Add, newPod("x"))
			h.change(podsource.Remove, newPod("x"))
		}, nil, nil},
		{"added, removed after the cleanup", func(h *housekeeperEnv) { h.change(podsource.Add, newPod("x")) }, func(h *housekeeperEnv) {
			h.change(podsource.Remove, newPod("x"))
		}, nil},
		{"added, removed and added again", func(h *housekeeperEnv) { h.change(podsource.Add, newPod("x")) }, func(h *housekeeperEnv) {
			h.change(podsource.Remove, newPod("x"))
			h.change(podsource.Add, newPod("x"))
		}, []string{"create x "}},
		{"added and deleted", func(h *housekeeperEnv) { h.change(podsource.Add, newPod("x")) }, func(h *housekeeperEnv) {
			h.change(podsource.Delete, newPod("x", deleting))
		}, []string{"create x "}},
		{"another is added", func(h *housekeeperEnv) { h.change(podsource.Add, newPod("y")) }, nil, []string{"create y "}},
	} {
		for _, by := range []string{"Housekeep", "Tidy"} {
			t.Run(tt.name+" during "+by, func(t *testing.T) {
				h := newHousekeeperEnv(t)
				h.stored["x"] = nil
				dropped := 0
				h.cfg.Hooks.StoreCleaned = func(string, types.UID, error) {
					dropped++
					tt.do(h)
				}
				var recreated []types.UID
				if by == "Tidy" {
					recreated = h.CleanupFinished(t.Context(), []types.UID{"x"})
				} else {
					recreated, _ = h.CleanupPods(t.Context())
				}
				require.Equal(t, 1, dropped)
				if tt.after != nil {
					tt.after(h)
				}
				h.pods.HandlePodRecreations(recreated)
				assert.Equal(t, append([]string{"drop x"}, tt.want...), h.w.take())
				assert.Empty(t, h.pods.reservedUIDs, "no reservation is left")
				h.pods.do(podsource.Remove, newPod("x"))
				assert.Contains(t, h.pods.do(podsource.Add, newPod("x")), "create x ")
			})
		}
	}
}

// SL-6: no plan includes a pod that may be desired.
func TestSnapshot_PlanRandomSequences(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		set := func() map[types.UID]struct{} {
			s := map[types.UID]struct{}{}
			for i := range 6 {
				if rnd.IntN(3) == 0 {
					s[types.UID(fmt.Sprint(i))] = struct{}{}
				}
			}
			return s
		}
		s := snapshot{known: set(), mayBeDesired: set(), desired: set(), removed: set(), allSynced: rnd.IntN(2) == 0}
		inRuntime := map[types.UID]string{}
		for uid := range set() {
			source := []string{"", "file", "api"}[rnd.IntN(3)]
			inRuntime[uid] = source
			s.runtime = append(s.runtime, runtimePod(string(uid), source))
		}
		unseen := set()
		s.uninspected = slices.Collect(maps.Keys(unseen))
		var kept []types.UID
		for uid := range set() {
			kept = append(kept, uid)
		}
		s.stores = []storeUIDs{{store: 0, uids: kept}}

		ended, dropped := map[types.UID]bool{}, map[types.UID]bool{}
		c := s.plan()
		for _, p := range c.orphans {
			ended[p.UID] = true
		}
		for _, d := range c.orphanedResources {
			for _, uid := range d.uids {
				dropped[uid] = true
			}
		}
		in := func(m map[types.UID]struct{}, uid types.UID) bool { _, ok := m[uid]; return ok }
		for i := range 6 {
			uid := types.UID(fmt.Sprint(i))
			source, there := inRuntime[uid]
			free := !in(s.desired, uid) && !in(s.known, uid)
			require.Equal(t, there && source != "" && free && !in(s.mayBeDesired, uid), ended[uid], "seed %d: end %s", seed, uid)
			has := false
			for _, k := range kept {
				has = has || k == uid
			}
			require.Equal(t, has && (s.allSynced || in(s.removed, uid)) && free && !there && !in(unseen, uid), dropped[uid], "seed %d: drop %s", seed, uid)
		}
	}
}

func TestNewHousekeeper_ReportsAllErrors(t *testing.T) {
	uids := func() ([]types.UID, error) { return nil, nil }
	remove := func(context.Context, types.UID) error { return nil }
	_, err := NewHousekeeper(HousekeeperConfig{RemoveTimeout: -1, Stores: []PodStore{
		{Name: "a", PodUIDs: uids}, {Name: "b", Remove: remove}, {PodUIDs: uids, Remove: remove}, {Name: "complete", PodUIDs: uids, Remove: remove},
	}})
	require.Error(t, err)
	var fields []string
	for line := range strings.Lines(err.Error()) {
		fields = append(fields, strings.FieldsFunc(strings.TrimPrefix(line, "syncloop: HousekeeperConfig."), func(r rune) bool { return r == ' ' || r == ':' })[0])
	}
	assert.Equal(t, []string{"Workers", "PodManager", "Sources", "PodCache", "RemoveTimeout", "Stores", "Stores", "Stores"}, fields)
}

// After a restart all resources of the previous process may be orphaned.
func BenchmarkSnapshot_Plan(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("N=%d", n), func(b *testing.B) {
			s := &snapshot{allSynced: true, stores: []storeUIDs{{}}}
			for i := range n {
				s.stores[0].uids = append(s.stores[0].uids, types.UID(fmt.Sprint("left-", i)))
				s.runtime = append(s.runtime, runtimePod(fmt.Sprint("there-", i), "file"))
			}
			for b.Loop() {
				if c := s.plan(); len(c.orphanedResources) != 1 || len(c.orphanedResources[0].uids) != n {
					b.Fatal(c.orphanedResources)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/pod")
		})
	}
}
