package podsource

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The incremental merge and the next change are compared with a full merge and a
// comparison of all pods. Sometimes names and UIDs collide, manifests are invalid, and
// the reader is slow.
func TestMux_IncrementalMergeMatchesFullMerge(t *testing.T) {
	incremental := 0
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 11))
		m, err := New(Config{NodeName: "n", Sources: []NamedSource{{Name: "a", Source: NewMemory()}, {Name: "b", Source: NewMemory()}}})
		require.NoError(t, err)
		sets := [2][]Manifest{}
		for range 80 {
			i := random.IntN(2)
			sets[i] = edited(random, sets[i], i)
			before := m.merged
			owners := maps.Clone(before.owner)
			m.receive(t.Context(), i, Set{Pods: sets[i]})
			want := merge(m.sources, owners, restoredPods{})
			require.Equal(t, names(want.pods), names(m.merged.pods), "seed %d", seed)
			require.Equal(t, want.byUID, m.merged.byUID)
			require.Equal(t, want.byFull, m.merged.byFull)
			require.Equal(t, want.owner, m.merged.owner)
			require.Len(t, m.merged.rejected, len(want.rejected))
			require.Equal(t, want.unique, m.merged.unique)
			if want.unique && before.unique {
				incremental++
			}
			for range random.IntN(4) {
				deliverNext(t, m)
			}
		}
		for deliverNext(t, m) {
		}
		require.Len(t, m.delivered.pods, len(m.merged.pods))
	}
	require.Greater(t, incremental, 500, "most changes are of the kind that is incremental")
}

// deliverNext delivers the next change, which must contain all pods of its Op and source.
func deliverNext(t *testing.T, m *Mux) bool {
	pending := [Refresh + 1]map[string][]types.UID{}
	note := func(op Op, source string, uid types.UID) {
		if pending[op] == nil {
			pending[op] = map[string][]types.UID{}
		}
		pending[op][source] = append(pending[op][source], uid)
	}
	for uid, p := range m.delivered.pods {
		if m.merged.byUID[uid] == nil {
			note(Remove, p.source, uid)
		}
	}
	for _, p := range m.merged.pods {
		was := m.delivered.pods[p.pod.UID]
		if was == nil {
			note(Add, p.source, p.pod.UID)
		} else if was.pod != p.pod || was.source != p.source {
			if op, differs := difference(was, p); differs {
				note(op, p.source, p.pod.UID)
			}
		}
	}
	s, ok := m.delivered.next(&m.merged)
	for _, op := range []Op{Remove, Delete, Add, Update, Reconcile} {
		if len(pending[op]) == 0 {
			continue
		}
		require.True(t, ok, "%s is due", op)
		require.Equal(t, op, s.Op)
		var uids []types.UID
		for _, p := range s.Pods {
			uids = append(uids, p.UID)
		}
		require.ElementsMatch(t, pending[op][s.Source], uids)
		m.delivered.add(s)
		return true
	}
	require.False(t, ok, "nothing is due")
	return false
}

func names(entries []*entry) (out []string) {
	for _, e := range entries {
		out = append(out, e.source+" "+e.full+" "+string(e.pod.UID)+" "+e.pod.Spec.Containers[0].Image)
	}
	return out
}

// edited returns the manifests with a few added, changed, moved or taken out; the
// others are the same pointers.
func edited(random *rand.Rand, pods []Manifest, source int) []Manifest {
	pods = slices.Clone(pods)
	for range 1 + random.IntN(2) {
		at := 0
		if len(pods) > 0 {
			at = random.IntN(len(pods))
		}
		switch random.IntN(8) {
		case 0, 1, 2:
			pods = slices.Insert(pods, at, Manifest{Pod: numbered(random, source*40+random.IntN(44))})
		case 3, 4:
			if len(pods) > 0 {
				p := pods[at].Pod.DeepCopy()
				p.Spec.Containers[0].Image = fmt.Sprint("i", random.IntN(3))
				p.Status.Message = fmt.Sprint(random.IntN(3))
				pods[at].Pod = p
			}
		case 5, 6:
			if len(pods) > 0 {
				pods = slices.Delete(pods, at, at+1)
			}
		case 7:
			if len(pods) > 1 {
				pods[0], pods[at] = pods[at], pods[0]
			}
		}
	}
	return pods
}

func numbered(random *rand.Rand, i int) *corev1.Pod {
	p := &corev1.Pod{}
	p.Name, p.Namespace, p.UID = fmt.Sprint("p", i), "default", types.UID(fmt.Sprint("uid-", i))
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	switch random.IntN(60) {
	case 0:
		p.Spec.Containers[0].Name = "not_valid"
	case 1:
		p.UID = "another"
	}
	return p
}

// One change among 10,000 pods is worked out with what one among 100 takes: what
// grows is a copy of pointers.
func TestMux_CostOfOneChange(t *testing.T) {
	cost := func(pods int) float64 {
		m, err := New(Config{NodeName: "n", Sources: []NamedSource{{Name: "a", Source: NewMemory()}}})
		require.NoError(t, err)
		s := many(pods)
		m.receive(t.Context(), 0, s)
		drain(m)
		n := 0
		return testing.AllocsPerRun(20, func() {
			n++
			next := Set{Pods: slices.Clone(s.Pods)}
			p := next.Pods[pods/2].Pod.DeepCopy()
			p.Spec.Containers[0].Image = fmt.Sprint("i", n)
			next.Pods[pods/2].Pod = p
			m.receive(t.Context(), 0, next)
			if drain(m) != 1 {
				t.Error("it is not told")
			}
			s = next
		})
	}
	few := cost(100)
	assert.Less(t, cost(10_000), 1.5*few)
}
