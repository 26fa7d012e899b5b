package podsync_test

import (
	"cmp"
	"context"
	"fmt"
	goruntime "runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// slowCgroups takes a time for each cgroup, and does not answer for the first ones.
type slowCgroups struct {
	podsync.Cgroups

	hanging int

	mu        sync.Mutex
	now, most int
	done      []time.Time
}

func (c *slowCgroups) Ensure(ctx context.Context, _ *corev1.Pod) (string, error) {
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	hangs := c.hanging > 0
	c.hanging--
	c.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return "", ctx.Err()
	}
	time.Sleep(10 * time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
	c.done = append(c.done, time.Now())
	return "pods", nil
}

// Of many pods that come at once, as many are set up at a time as leave half of the processors to
// the start of the first. Pods that run are not delayed, and hanging ones delay others once.
func TestSync_BoundsPodsBeingSetUp(t *testing.T) {
	slots := max(1, goruntime.GOMAXPROCS(0)/2)
	pods := 4 * slots
	for name, c := range map[string]struct {
		observed runtime.Pod
		pods     int // default: pods
		hanging  int
		most     int
		took     time.Duration
	}{
		"new":     {most: slots, took: 40 * time.Millisecond},
		"running": {observed: runtime.Pod{Sandboxes: []runtime.Sandbox{{ID: "sb", State: runtime.SandboxReady}}}, most: pods, took: 10 * time.Millisecond},
		"many":    {pods: 300 * slots, most: slots, took: 3 * time.Second},
		"hanging": {hanging: slots, most: pods, took: time.Second + 10*time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			pods := cmp.Or(c.pods, pods)
			synctest.Test(t, func(t *testing.T) {
				cgroups := &slowCgroups{hanging: c.hanging}
				cfg := newConfig(t, &fakeNode{phase: corev1.PodPending})
				cfg.Cgroups, cfg.Probes = cgroups, nil
				s := newSyncer(t, cfg)
				start := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				for i := range pods {
					p := newTestPod()
					p.Name, p.UID = fmt.Sprint("web-", i), types.UID(fmt.Sprint("uid-", i))
					wg.Go(func() {
						_, err := s.Sync(ctx, p, c.observed)
						if ctx.Err() == nil {
							assert.NoError(t, err)
						}
					})
				}
				time.Sleep(5 * time.Second)
				cancel() // those that hang
				wg.Wait()
				assert.Equal(t, c.most, cgroups.most)
				if assert.Len(t, cgroups.done, pods-c.hanging) {
					assert.Equal(t, c.took, cgroups.done[len(cgroups.done)-1].Sub(start))
				}
			})
		})
	}
}
