//go:build linux

package e2e

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// Starting a pod of one container whose image is present costs six calls: is
// the image there, make sandbox, make container, start, a status of each. That of the sandbox
// comes with an event too, which may be late. Where there
// is no event stream all pods are listed each second beside that. On a busy machine the four events
// of one start, of which sandbox and container have two each, can come so far apart that the pod is inspected for each.
//
// Deleting it costs six, too: stop container and sandbox, two lists of what is left, the status of the container, and the
// removal of the sandbox. Nothing of it is inspected or removed afterwards, but for events that are late.
func TestCallsOfAPod(t *testing.T) {
	const most, inspection, events = 6, 3, 4
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		r := newRig(n.Dial(t), filepath.Join(n.Shared, "traffic"), n.Busybox, n.CgroupParent)
		r.tap.eventful = true
		l := r.start(t)
		l.up(t, r.pod("warm"))
		l.down(t, 1)
		time.Sleep(2 * time.Second)
		// calls returns how many do makes, with those of the time after it.
		calls := func(what string, do func(), after time.Duration) int {
			r.tap.take()
			do()
			made := r.tap.take()
			time.Sleep(after)
			late := r.tap.take()
			t.Logf("%s: %v, then %v", what, made, late)
			n := total(made, listing) + total(late, listing)
			assert.LessOrEqual(t, n, most+events*inspection, "%s: %v, then %v", what, made, late)
			return n
		}
		start, deletion := math.MaxInt, math.MaxInt
		for i := 0; i < 5 || max(start, deletion) > most && i < 20; i++ {
			start = min(start, calls("start", func() { l.up(t, r.pod(fmt.Sprint("p", i))) }, 3*time.Second))
			deletion = min(deletion, calls("deletion", func() { l.down(t, 1) }, 2*time.Second))
		}
		assert.LessOrEqual(t, start, most, "of the start that took the fewest calls")
		assert.LessOrEqual(t, deletion, most, "of the deletion that took the fewest calls")
	})
}

// Pods to which nothing happens cost almost nothing: they are not inspected where
// the runtime tells what changes, and two lists a second are all where it does not.
func TestCallsOfIdlePods(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a quarter of a minute with the race detector, and is the same for all users")
	}
	const pods, minutes = 30, 20
	for name, c := range map[string]struct {
		events   bool
		mostEach float64 // calls a minute
	}{
		"with an event stream":    {true, 2},
		"without an event stream": {false, 130},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
				require.NoError(t, err)
				defer func() { require.NoError(t, rt.Close()) }()
				cc, err := rt.Dial()
				require.NoError(t, err)
				defer func() { require.NoError(t, cc.Close()) }()
				r := newRig(cc, t.TempDir(), "registry.example/idle:1", "")
				r.tap.eventful = c.events
				l := r.start(t)
				for i := range pods {
					l.Put(r.pod(fmt.Sprint("p", i)))
				}
				l.await(t, l.running, time.Now(), pods)
				time.Sleep(5 * time.Minute)
				r.tap.take()

				all, worst := map[string]int{}, 0
				for range minutes {
					time.Sleep(time.Minute)
					calls := r.tap.take()
					worst = max(worst, total(calls))
					for rpc, n := range calls {
						all[rpc] += n
					}
				}
				t.Logf("%.2f calls a minute, %d in the busiest: %v in %d minutes", float64(total(all))/minutes, worst, all, minutes)
				assert.LessOrEqual(t, float64(total(all))/minutes, c.mostEach, "%v in %d minutes", all, minutes)
				assert.NotZero(t, total(all), "a look from time to time is wanted")
				l.down(t, pods)
				l.stop()
			})
		})
	}
}
