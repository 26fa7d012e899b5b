package syncloop

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/clocktest"
)

// SL-5: the heap behaves like a list that is searched.
func TestDuesAgainstList(t *testing.T) {
	start := time.Now()
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var d requeueTimes
		naive := map[types.UID]time.Time{}
		now := start
		for range 200 {
			switch rnd.IntN(4) {
			case 0, 1:
				uid, at := types.UID(fmt.Sprint(rnd.IntN(20))), now.Add(time.Duration(rnd.IntN(100)-5)*time.Second)
				d.set(uid, at)
				naive[uid] = at
			case 2:
				uid := types.UID(fmt.Sprint(rnd.IntN(20)))
				d.set(uid, time.Time{})
				delete(naive, uid)
			case 3:
				now = now.Add(time.Duration(rnd.IntN(20)) * time.Second)
				var want []types.UID
				for uid, at := range naive {
					if !at.After(now) {
						want = append(want, uid)
					}
				}
				got := d.take(now)
				require.True(t, slices.IsSortedFunc(got, func(a, b types.UID) int { return naive[a].Compare(naive[b]) }))
				require.ElementsMatch(t, want, got)
				for _, uid := range want {
					delete(naive, uid)
				}
			}
			var first time.Time
			for _, at := range naive {
				if first.IsZero() || at.Before(first) {
					first = at
				}
			}
			require.True(t, first.Equal(d.next()), "%v, not %v", d.next(), first)
			require.Len(t, d.pods, len(naive))
		}
	}
}

func TestPodSet_MatchesMap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	var r podSet
	naive := map[types.UID]string{}
	for i := range 2000 {
		uid := types.UID(fmt.Sprint(rnd.IntN(30)))
		switch rnd.IntN(5) {
		case 0, 1, 2:
			pod := newPod(string(uid))
			pod.Name = fmt.Sprint(i)
			r.put(pod)
			naive[uid] = pod.Name
		case 3:
			r.drop(uid)
			delete(naive, uid)
		case 4:
			if rnd.IntN(10) == 0 {
				r.keep(func(p *Pod) bool { return p.UID != uid && p.UID < "2" })
				for u := range naive {
					if u == uid || u >= "2" {
						delete(naive, u)
					}
				}
			}
		}
		require.Len(t, r.pods, len(naive))
		for _, p := range r.pods {
			require.Equal(t, naive[p.UID], p.Name)
		}
	}
}

// SL-5, AG-10: setting the wall clock delays no requeue, also not one at the end of a
// back-off, which is a time of the wall clock of the runtime.
func TestDues_AfterClockWasSetBack(t *testing.T) {
	const step = 3 * time.Hour
	now := time.Now()
	before := clocktest.BeforeSetBack(t, now, step)
	var d requeueTimes
	d.set("crashed", now.Add(10*time.Second).Round(0))
	for i := range 50 {
		d.set(types.UID(fmt.Sprint(i)), before.Add(11*time.Second+time.Duration(i)*time.Second))
	}
	require.Equal(t, []types.UID{"crashed"}, d.take(clocktest.BeforeSetBack(t, now.Add(10500*time.Millisecond), -step)))
	require.Len(t, d.take(now.Add(time.Minute)), 50)
}
