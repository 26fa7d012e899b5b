package status

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Of a pod that is gone nothing is kept, whatever its sinks went through.
func TestManager_DropsDeletedPods(t *testing.T) {
	failing := &slowSink{}
	failing.fails.Store(3)
	for name, sinks := range map[string][]Sink{
		"no sink":   nil,
		"one sink":  {SinkFunc(func(context.Context, *corev1.Pod, corev1.PodStatus) error { return nil })},
		"slow ones": {&slowSink{}, &slowSink{}},
		"one fails": {failing, &slowSink{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, err := New(Config{Sinks: sinks})
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- m.Run(ctx) }()
				for _, uid := range []types.UID{"a", "b"} {
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: string(uid), UID: uid}}
					m.Observe(pod, runtime.Report{})
					m.Observe(pod, runtime.Report{Finished: true})
					m.Forget(uid)
					m.Forget(uid)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				m.mu.Lock()
				assert.Empty(t, m.entries)
				for _, l := range m.queues {
					assert.Empty(t, l.items)
					assert.Zero(t, l.busy+l.retries+l.ready.Len()+l.retrying.Len()+l.delayed.Len())
				}
				m.mu.Unlock()
				cancel()
				require.NoError(t, <-ended)
			})
		})
	}
}

// slowSink takes a second for each call, and fails the first ones.
type slowSink struct{ fails atomic.Int32 }

func (s *slowSink) SetStatus(context.Context, *corev1.Pod, corev1.PodStatus) error {
	time.Sleep(time.Second)
	if s.fails.Add(-1) >= 0 {
		return errors.New("not now")
	}
	return nil
}

func (s *slowSink) DeleteStatus(ctx context.Context, pod *corev1.Pod) error {
	return s.SetStatus(ctx, pod, corev1.PodStatus{})
}
