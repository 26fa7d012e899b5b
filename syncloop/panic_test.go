package syncloop

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
)

// AG-9: a panic in a call of the loop affects only that call.
func TestLoop_Panics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeCleaner{callLog: &callLog{}}
		bad := true
		b := start(t, func(b *loopEnv, c *Config) {
			b.says(nil)
			c.Cleaner, c.RuntimeState = k, b
			c.Hooks.IterationEnded = func(Input, time.Duration) { panic("hook") }
			c.Handler = panickingHandler{c.Handler, &bad}
		})
		b.probes.put(probe.ResultChange{UID: "a"})
		time.Sleep(time.Second)
		b.does(func() error { panic("runtime") })
		time.Sleep(time.Minute)
		require.ErrorIs(t, b.Healthy(), ErrRuntimeNotReady)
		b.says(nil)
		time.Sleep(time.Minute)
		require.NoError(t, b.Healthy())
		bad = false
		b.log.take()
		b.probes.put(probe.ResultChange{UID: "a"})
		synctest.Wait()
		assert.Equal(t, []string{"2m1s wake a RequeueNow"}, b.log.take())
	})
}

// AG-9: what is reported once of several pods reaches those for which nothing panics.
func TestLoop_PanicForOnePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := true
		b := start(t, func(_ *loopEnv, c *Config) { c.Handler = panickingHandler{c.Handler, &bad} })
		b.events.put(pleg.Event{Type: pleg.ContainerDied, UID: "bad"}, pleg.Event{Type: pleg.ContainerDied, UID: "b"})
		synctest.Wait()
		assert.Equal(t, []string{"0s wake b RequeueEvent"}, b.log.take())
	})
}

// AG-9: the pods of a change that cannot be handled are rejected or left out, and the others start.
func TestPodManager_PanicForOnePod(t *testing.T) {
	p, n := newPreemptingPods(t, 3, func(c *PodManagerConfig) {
		c.Inspector = running(func(uid types.UID) bool {
			if uid == "bad" {
				panic("inspector")
			}
			return false
		})
	})
	p.set("bad", &desiredPod{pod: newPod("bad"), leftAlone: true})
	a, b := newPod("a", created(1)), newPod("b", created(2))
	p.do(podsource.Add, a, b)
	p.cfg.Preemptor = panickingPreemptor{n}
	assert.Equal(t, []string{"create c ", "refuse d: OutOfpods: 3 pods are here"},
		p.do(podsource.Add, newPod("c", created(3)), newPod("d", created(4), critical)))

	assert.Equal(t, []string{"change a "}, p.do(podsource.Update, newPod("bad"), a), "the other pod of the change")
}

type panickingPreemptor struct{ Preemptor }

func (panickingPreemptor) Victims(*Pod, []*Pod, func(*Pod) bool) ([]*Pod, bool) { panic("preemptor") }

// panickingHandler is a Handler that panics while bad.
type panickingHandler struct {
	Handler
	bad *bool
}

func (p panickingHandler) HandlePodSync(uid types.UID, why podworkers.RequeueReason) {
	if *p.bad && uid != "b" {
		panic("handler")
	}
	p.Handler.HandlePodSync(uid, why)
}
