package syncloop

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

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

// panickingHandler is a Handler that panics while bad.
type panickingHandler struct {
	Handler
	bad *bool
}

func (p panickingHandler) HandlePodSync(uid types.UID, why podworkers.RequeueReason) {
	if *p.bad {
		panic("handler")
	}
	p.Handler.HandlePodSync(uid, why)
}
