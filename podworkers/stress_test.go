package podworkers_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// randomSyncer is a Syncer whose calls take a moment, fail and panic at random. It
// counts calls that overlap for one pod.
type randomSyncer struct {
	working  sync.Map // types.UID to *atomic.Int32
	overlaps atomic.Int32
	calls    atomic.Int64
}

func (j *randomSyncer) call(uid types.UID) error {
	v, _ := j.working.LoadOrStore(uid, new(atomic.Int32))
	n := v.(*atomic.Int32)
	if n.Add(1) != 1 {
		j.overlaps.Add(1)
	}
	defer n.Add(-1)
	j.calls.Add(1)
	time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond)
	switch rand.IntN(12) {
	case 0:
		return errors.New("sync failed")
	case 1:
		panic("sync panicked")
	}
	return nil
}

func (j *randomSyncer) Sync(_ context.Context, pod *corev1.Pod, _ runtime.Pod) (runtime.SyncResult, error) {
	return runtime.SyncResult{Terminal: rand.IntN(20) == 0}, j.call(pod.UID)
}

func (j *randomSyncer) Terminate(_ context.Context, pod *corev1.Pod, _ runtime.Pod, _ runtime.Termination) error {
	return j.call(pod.UID)
}

func (j *randomSyncer) Finish(_ context.Context, pod *corev1.Pod, _ runtime.Termination) error {
	return j.call(pod.UID)
}

func (j *randomSyncer) GetNewerThan(_ context.Context, uid types.UID, _ time.Time) (runtime.Pod, error) {
	return runtime.Pod{UID: uid, ObservedAt: time.Now()}, nil
}

func (j *randomSyncer) IsRunning(types.UID) bool { return rand.IntN(2) == 0 }

// PW-2, PW-7, PW-16: concurrent requests of all kinds.
func TestWorkers_Stress(t *testing.T) {
	j := &randomSyncer{}
	w, err := podworkers.New(podworkers.Config{Syncer: j, Inspector: j, BackOff: time.Millisecond, ResyncPeriod: 5 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, w.Run(ctx)) })

	var kills, results atomic.Int64
	kill := func() podworkers.KillOptions {
		kills.Add(1)
		var once atomic.Int32
		return podworkers.KillOptions{
			Termination:       runtime.Termination{Deleted: rand.IntN(2) == 0, GracePeriod: time.Duration(rand.IntN(30)) * time.Second},
			WaitUntilFinished: rand.IntN(2) == 0,
			Done: func(error) {
				assert.EqualValues(t, 1, once.Add(1))
				results.Add(1)
			},
		}
	}
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 400 {
				p := newTestPod(fmt.Sprint("p", rand.IntN(20)))
				if rand.IntN(2) == 0 {
					p = newTestPod(fmt.Sprint("s", rand.IntN(6)), static(fmt.Sprint("web", rand.IntN(2))))
				}
				switch rand.IntN(8) {
				case 0, 1, 2:
					w.Update(create(p))
				case 3:
					w.RequestKill(p.UID, kill())
				case 4:
					w.Requeue(p.UID, podworkers.RequeueEvent)
				case 5:
					w.SyncKnownPods(map[types.UID]struct{}{p.UID: {}}, true)
				case 6:
					w.Update(podworkers.Update{Orphan: &runtime.Pod{UID: p.UID, Namespace: p.Namespace, Name: p.Name, ObservedAt: time.Now()}})
				case 7:
					w.Snapshot()
					w.ForgetFinished(p.UID, rand.IntN(2) == 0)
				}
			}
		})
	}
	clients.Wait()
	drain, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	require.NoError(t, w.Drain(drain, podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}}))
	for _, st := range w.Snapshot() {
		assert.True(t, st.Idle, st)
	}
	cancel()
	running.Wait()
	assert.Equal(t, kills.Load(), results.Load())
	assert.Zero(t, j.overlaps.Load())
	assert.Positive(t, j.calls.Load())
}
