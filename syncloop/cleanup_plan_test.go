package syncloop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

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
	w       *fakeWorkers
	pods    *pods
	sources *fakeSources
	seen    []runtime.Pod
	unseen  []types.UID
	kept    map[types.UID]error // what the store has, and what its removal comes to
}

func newHouse(t *testing.T) *housekeeperEnv {
	t.Helper()
	h := &housekeeperEnv{pods: newPods(t), sources: &fakeSources{}, kept: map[types.UID]error{}}
	h.w = h.pods.w
	var err error
	h.Housekeeper, err = NewHousekeeper(HousekeeperConfig{
		Workers: h.w, PodManager: h.pods.PodManager, Sources: h.sources, RuntimePods: func() []runtime.Pod { return h.seen },
		Uninspected: func() []types.UID { return h.unseen },
		Stores: []PodStore{{
			Name: "things",
			PodUIDs: func() (uids []types.UID, err error) {
				for uid := range h.kept {
					uids = append(uids, uid)
				}
				return uids, nil
			},
			Remove: func(_ context.Context, uid types.UID) error {
				h.w.note("drop %s", uid)
				err := h.kept[uid]
				if err == nil {
					delete(h.kept, uid)
				}
				return err
			},
		}},
	})
	require.NoError(t, err)
	return h
}

// SL-6, SR-8: who is ended and what is removed, by what is known.
func TestHousekeeping(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(h *housekeeperEnv)
		want []string
	}{
		{"nothing", func(*housekeeperEnv) {}, nil},
		{"an orphan of a source that has spoken", func(h *housekeeperEnv) { h.seen = []runtime.Pod{seenPod("o", "file")} }, []string{"orphan o"}},
		{"of one that has not", func(h *housekeeperEnv) {
			h.seen = []runtime.Pod{seenPod("o", "file")}
			h.sources.unready = map[string]bool{"file": true}
		}, nil},
		{"while another source is silent", func(h *housekeeperEnv) {
			h.seen = []runtime.Pod{seenPod("o", "file"), seenPod("p", "api")}
			h.sources.unready = map[string]bool{"api": true}
		}, []string{"orphan o"}},
		{"of no source at all", func(h *housekeeperEnv) { h.seen = []runtime.Pod{seenPod("o", "")} }, nil},
		{"known by its containers only", func(h *housekeeperEnv) {
			h.seen = []runtime.Pod{{UID: "o", Containers: []runtime.Container{{Annotations: map[string]string{podspec.AnnotationSource: "file"}}}}}
		}, []string{"orphan o"}},
		{"an empty view", func(h *housekeeperEnv) { h.seen = []runtime.Pod{{UID: "o"}} }, nil},
		{"wanted", func(h *housekeeperEnv) {
			h.pods.do(podsource.Add, newPod("o"))
			h.seen = []runtime.Pod{seenPod("o", "file")}
		}, nil},
		{"wanted, though the loop has not heard of it", func(h *housekeeperEnv) {
			h.sources.pods = []*Pod{newPod("o")}
			h.seen = []runtime.Pod{seenPod("o", "file")}
		}, nil},
		{"ending", func(h *housekeeperEnv) {
			h.w.states["o"] = podworkers.State{Phase: podworkers.Terminating}
			h.seen = []runtime.Pod{seenPod("o", "file")}
		}, nil},
		{"things of nobody", func(h *housekeeperEnv) { h.kept["x"] = nil }, []string{"drop x"}},
		{"things of nobody, but not all is known", func(h *housekeeperEnv) {
			h.kept["x"] = nil
			h.sources.unready = map[string]bool{"api": true}
		}, nil},
		{"things of a pod in the runtime", func(h *housekeeperEnv) {
			h.kept["x"] = nil
			h.seen = []runtime.Pod{seenPod("x", "")}
		}, nil},
		{"things of a pod in the runtime that nobody has looked at yet", func(h *housekeeperEnv) {
			h.kept["x"] = nil
			h.unseen = []types.UID{"x"}
		}, nil},
		{"things of a wanted pod", func(h *housekeeperEnv) {
			h.kept["x"] = nil
			h.pods.do(podsource.Add, newPod("x"))
		}, nil},
		{"things of an ending pod", func(h *housekeeperEnv) {
			h.kept["x"] = nil
			h.w.states["x"] = podworkers.State{Phase: podworkers.Terminated}
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t)
			tt.do(h)
			h.w.take()
			again, settled := h.CleanupPods(t.Context())
			assert.Empty(t, again)
			assert.Equal(t, tt.want == nil && len(h.sources.unready) == 0, settled)
			assert.Equal(t, tt.want, h.w.take())
			assert.Equal(t, len(h.sources.unready) == 0, h.w.full)
		})
	}
}

// PW-10: housekeeping hands on which pods begin anew.
func TestHousekeepingStartsAnew(t *testing.T) {
	h := newHouse(t)
	h.w.again = []types.UID{"a"}
	again, _ := h.CleanupPods(t.Context())
	assert.Equal(t, []types.UID{"a"}, again)
}

// SL-6: after an end, what the pod left goes before its life is forgotten.
func TestHousekeeper_CleanupFinished(t *testing.T) {
	h := newHouse(t)
	over := podworkers.State{Phase: podworkers.Finished, Idle: true}
	h.w.states["gone"], h.w.states["back"], h.w.states["alive"], h.w.states["stuck"] = over, over, podworkers.State{}, over
	h.kept["stuck"] = errors.New("busy")
	h.pods.do(podsource.Add, newPod("back"))
	h.w.take()
	again := h.CleanupFinished(t.Context(), []types.UID{"gone", "back", "alive", "orphan", "stuck"})
	assert.Equal(t, []types.UID{"back"}, again)
	assert.Equal(t, []string{
		"drop gone", "settle gone false", "settle back true",
		"drop orphan", // its life is forgotten already
		"drop stuck",
	}, h.w.take())
}

// SL-6: a look that failed is followed by another.
func TestHousekeepingIsNotSettledByAFault(t *testing.T) {
	h := newHouse(t)
	h.kept["x"] = errors.New("busy")
	for range 2 {
		_, settled := h.CleanupPods(t.Context())
		assert.False(t, settled)
	}
	h.kept["x"] = nil
	_, settled := h.CleanupPods(t.Context())
	assert.False(t, settled, "there was something to do")
	_, settled = h.CleanupPods(t.Context())
	assert.True(t, settled)
}

// change is what the loop is told by a source.
func (h *housekeeperEnv) change(op podsource.Op, pods ...*Pod) {
	h.pods.HandlePodChange(podsource.Change{Op: op, Source: "test", Pods: pods})
}

// SL-6: a pod that is wanted in the very moment in which what an older one of its
// UID left is removed begins after that, once, as it is wanted by then.
func TestAPodComesWhileItsLeftoversGo(t *testing.T) {
	for _, tt := range []struct {
		name  string
		do    func(h *housekeeperEnv) // while they go
		after func(h *housekeeperEnv) // before the loop hears of it
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
		{"added, removed once they are gone", func(h *housekeeperEnv) { h.change(podsource.Add, newPod("x")) }, func(h *housekeeperEnv) {
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
				h := newHouse(t)
				h.kept["x"] = nil
				dropped := 0
				h.cfg.Hooks.StoreCleaned = func(string, types.UID, error) {
					dropped++
					tt.do(h)
				}
				var again []types.UID
				if by == "Tidy" {
					again = h.CleanupFinished(t.Context(), []types.UID{"x"})
				} else {
					again, _ = h.CleanupPods(t.Context())
				}
				require.Equal(t, 1, dropped)
				if tt.after != nil {
					tt.after(h)
				}
				h.pods.HandlePodRecreations(again)
				assert.Equal(t, append([]string{"drop x"}, tt.want...), h.w.take())
				assert.Empty(t, h.pods.reservedUIDs, "nobody is held for ever")
				h.pods.do(podsource.Remove, newPod("x"))
				assert.Contains(t, h.pods.do(podsource.Add, newPod("x")), "create x ")
			})
		}
	}
}

// A plan never touches what somebody may want, whatever the scene.
func TestPlanIsCareful(t *testing.T) {
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
		s := snapshot{known: set(), mayBeDesired: set(), desired: set(), allSynced: rnd.IntN(2) == 0}
		inRuntime := map[types.UID]string{}
		for uid := range set() {
			source := []string{"", "file", "api"}[rnd.IntN(3)]
			inRuntime[uid] = source
			s.runtime = append(s.runtime, seenPod(string(uid), source))
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
			require.Equal(t, has && s.allSynced && free && !there && !in(unseen, uid), dropped[uid], "seed %d: drop %s", seed, uid)
		}
	}
}

func TestHousekeeperConfigFaults(t *testing.T) {
	_, err := NewHousekeeper(HousekeeperConfig{Stores: []PodStore{{Name: "x"}}})
	for _, what := range []string{"nil Lives", "nil Pods", "nil Sources", "nil Runtime", "store x is not complete"} {
		assert.ErrorContains(t, err, what)
	}
}

// After a restart everything that a former agent kept may be left over.
func BenchmarkPlanOfLeftovers(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("N=%d", n), func(b *testing.B) {
			s := &snapshot{allSynced: true, stores: []storeUIDs{{}}}
			for i := range n {
				s.stores[0].uids = append(s.stores[0].uids, types.UID(fmt.Sprint("left-", i)))
				s.runtime = append(s.runtime, seenPod(fmt.Sprint("there-", i), "file"))
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
