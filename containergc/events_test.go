package containergc_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/runtime"
)

type recorder struct{ events []*corev1.Event }

func (r *recorder) Record(e *corev1.Event) {
	r.events = append(r.events, e)
	if len(r.events) == 3 {
		panic("recorder")
	}
}

// failing is a runtime whose list of pods fails while it is to.
type failing struct {
	*node

	fails atomic.Bool
}

func (f *failing) Pods(ctx context.Context) ([]runtime.Pod, error) {
	if f.fails.Load() {
		return nil, errors.New("boom")
	}
	return f.node.Pods(ctx)
}

// Each periodic collection that fails is an event of the node under the kubelet's reason, and one that succeeds is none.
func TestCollector_FailureIsEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		rt := &failing{node: crowded(3)}
		rt.fails.Store(true)
		c := collector(t, containergc.Config{Containers: rt, PodState: podStates{}.of, NodeName: "n1", Recorder: rec})
		_, err := c.Collect(t.Context())
		require.Error(t, err)
		assert.Empty(t, rec.events, "its caller has the error")

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(210 * time.Second)
		synctest.Wait()
		require.Len(t, rec.events, 3)
		e := rec.events[0]
		assert.Equal(t, "Warning ContainerGCFailed list pods: boom", e.Type+" "+e.Reason+" "+e.Message)
		assert.Equal(t, corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1"}, e.InvolvedObject)

		rt.fails.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Len(t, rec.events, 3)
		assert.NotEmpty(t, rt.removed)
		cancel()
		require.NoError(t, <-done)
		assert.Len(t, rec.events, 3)
	})
}
