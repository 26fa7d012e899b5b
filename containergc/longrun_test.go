package containergc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/runtime"
)

// CG-1, CG-2: a year in which pods come, crash and go.
func TestCollector_OneYear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(5, 6))
		n := &node{pods: map[types.UID]*runtime.Pod{}}
		stands := podStates{}
		var mu sync.Mutex
		c := collector(t, containergc.Config{Containers: n, Period: time.Hour, Policy: containergc.Policy{MaxPerPodContainer: 3, MaxContainers: 40}, PodState: func(uid types.UID) containergc.PodState {
			mu.Lock()
			defer mu.Unlock()
			return stands[uid]
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		live, next := []types.UID{}, 0
		for range 365 * 2 {
			n.mu.Lock()
			mu.Lock()
			if len(live) < 10 {
				uid := types.UID(fmt.Sprint("u", next))
				n.pods[uid] = &runtime.Pod{UID: uid, Sandboxes: []runtime.Sandbox{{ID: fmt.Sprint("s", next), Created: time.Now()}}}
				live, next = append(live, uid), next+1
			}
			for _, uid := range live { // each crashes a few times
				p := n.pods[uid]
				for range rnd.IntN(6) {
					attempt := uint32(0)
					if len(p.Containers) > 0 {
						attempt = p.Containers[0].Attempt + 1
					}
					p.Containers = append([]runtime.Container{{
						ID: fmt.Sprint(uid, "-", attempt), Name: "a", SandboxID: p.Sandboxes[0].ID, Attempt: attempt, State: runtime.Exited, Created: time.Now(),
					}}, p.Containers...)
				}
			}
			goes := rnd.IntN(len(live))
			if rnd.IntN(5) == 0 {
				stands[live[goes]] = containergc.PodDeleted
				live = slices.Delete(live, goes, goes+1)
				c.RequestCollection()
			}
			newest := map[types.UID]string{}
			for _, uid := range live {
				if p := n.pods[uid]; len(p.Containers) > 0 {
					newest[uid] = p.Containers[0].ID
				}
			}
			mu.Unlock()
			n.mu.Unlock()
			time.Sleep(12*time.Hour - time.Second)
			require.LessOrEqual(t, n.left(), 40)
			n.mu.Lock()
			require.Len(t, n.pods, len(live), "what is gone is gone")
			for uid, id := range newest {
				require.Equal(t, id, n.pods[uid].Containers[0].ID, "the last of a live pod stays")
			}
			n.mu.Unlock()
			time.Sleep(time.Second)
		}
		cancel()
		require.NoError(t, <-ended)
	})
}
