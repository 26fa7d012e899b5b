package podworkers_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// drainedWorkers records what is requested of workers that know one pod.
type drainedWorkers struct {
	requests []string
	err      error
}

func (w *drainedWorkers) IsKnown(uid types.UID) bool { return uid == "known" }

func (w *drainedWorkers) Update(u podworkers.Update) {
	if u.Orphan != nil {
		w.requests = append(w.requests, fmt.Sprintf("orphan %s", u.Orphan.UID))
		return
	}
	w.requests = append(w.requests, fmt.Sprintf("create %s %v drained=%v", u.Pod.UID, u.Type == podworkers.PodCreate, u.Kill.Drained))
}

func (w *drainedWorkers) Drain(_ context.Context, k podworkers.KillOptions) error {
	w.requests = append(w.requests, fmt.Sprintf("drain drained=%v", k.Drained))
	return w.err
}

type drainedRuntime struct {
	pods []runtime.Pod
	err  error
}

func (r drainedRuntime) Pods(context.Context) ([]runtime.Pod, error) { return r.pods, r.err }

func runningPod(uid types.UID, source string) runtime.Pod {
	return runtime.Pod{UID: uid, Sandboxes: []runtime.Sandbox{{Source: source}}}
}

// SL-7: pods that were not adopted before the stop are drained as well, by their spec
// where it is known; those of other sources are left alone.
func TestDrainPods_IncludesUnadoptedPods(t *testing.T) {
	w := &drainedWorkers{}
	err := podworkers.DrainPods(t.Context(), podworkers.DrainConfig{
		Workers: w,
		Runtime: drainedRuntime{pods: []runtime.Pod{
			runningPod("known", "file"), runningPod("restored", "file"), runningPod("lost", "http"), runningPod("foreign", "api"), {UID: "containers only"},
		}},
		Pods:    func() []*corev1.Pod { return []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: "restored"}}} },
		Sources: []string{"file", "http"},
	})
	require.NoError(t, err)
	assert.Equal(t, []string{"create restored true drained=true", "orphan lost", "drain drained=true"}, w.requests)
}

// SL-7: a runtime that does not answer does not prevent the drain of known pods.
func TestDrainPods_JoinsErrors(t *testing.T) {
	w := &drainedWorkers{err: errors.New("drain pod known: timeout")}
	err := podworkers.DrainPods(t.Context(), podworkers.DrainConfig{Workers: w, Runtime: drainedRuntime{err: errors.New("connection refused")}})
	require.EqualError(t, err, "drain pods: list pods that are not adopted yet: connection refused\ndrain pod known: timeout")
	assert.Equal(t, []string{"drain drained=true"}, w.requests)
}
