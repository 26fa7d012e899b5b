package podworkers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

type evictedWorkers struct {
	killed podworkers.KillOptions
	uid    types.UID
	err    error
}

func (w *evictedWorkers) State(uid types.UID) (podworkers.State, bool) {
	phase, ok := map[types.UID]podworkers.Phase{
		"syncing": podworkers.Syncing, "terminating": podworkers.Terminating, "terminated": podworkers.Terminated, "finished": podworkers.Finished,
	}[uid]
	return podworkers.State{UID: uid, Phase: phase}, ok
}

func (w *evictedWorkers) Kill(_ context.Context, uid types.UID, k podworkers.KillOptions) error {
	w.uid, w.killed = uid, k
	return w.err
}

type evictedStatuses []types.UID

func (s evictedStatuses) Pods() (pods []*corev1.Pod) {
	for _, uid := range s {
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
	}
	return pods
}

// EV-5: only pods that may have containers are ranked, and an eviction is over when the
// resources of the pod are released.
func TestEvictor(t *testing.T) {
	w := &evictedWorkers{err: errors.New("pod is gone")}
	e := podworkers.Evictor{Workers: w, Statuses: evictedStatuses{"syncing", "unknown", "terminated", "terminating", "finished"}}
	var uids []types.UID
	for _, pod := range e.ActivePods() {
		uids = append(uids, pod.UID)
	}
	assert.Equal(t, []types.UID{"syncing", "terminating"}, uids)

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "syncing"}}
	termination := runtime.Termination{GracePeriod: time.Second, Reason: "Evicted", Message: "low on memory", Evicted: true}
	err := e.Evict(t.Context(), pod, termination)
	require.ErrorIs(t, err, w.err)
	assert.Equal(t, types.UID("syncing"), w.uid)
	assert.Equal(t, podworkers.KillOptions{Termination: termination, WaitUntilFinished: true}, w.killed)
}
