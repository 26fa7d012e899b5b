package podsync

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// idle implements the required dependencies of a Syncer and does nothing.
type idle struct{}

func (idle) Apply(context.Context, *corev1.Pod, []runtime.Action, runtime.RunOptions) runtime.ApplyResult {
	return runtime.ApplyResult{}
}

func (idle) Kill(context.Context, *corev1.Pod, runtime.Pod, runtime.Termination) error { return nil }

func (idle) Remove(context.Context, runtime.Pod) error { return nil }
func (idle) RequestInspection(types.UID)               {}

func (idle) GetNewerThan(context.Context, types.UID, time.Time) (runtime.Pod, error) {
	return runtime.Pod{}, nil
}

func (idle) Observe(*corev1.Pod, runtime.Report) corev1.PodStatus { return corev1.PodStatus{} }
func (idle) Get(types.UID) (corev1.PodStatus, bool)               { return corev1.PodStatus{}, false }

// The state of a pod is forgotten when nothing of the pod is left.
func TestSyncer_ForgetsFinishedPods(t *testing.T) {
	dir := t.TempDir()
	s, err := New(Config{Runtime: idle{}, PodCache: idle{}, Statuses: idle{}, PodsDir: dir + "/pods", LogsDir: dir + "/logs"})
	require.NoError(t, err)
	assert.Equal(t, "/etc/resolv.conf", s.cfg.Node.ResolvConf)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", UID: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns", UID: "b"}}
	for _, end := range []func() error{
		func() error { return s.Finish(t.Context(), pod, runtime.Termination{}) },
		func() error { return s.Terminate(t.Context(), orphan, runtime.Pod{}, runtime.Termination{}) },
		func() error { _ = s.state("c"); return s.CleanupOrphan(t.Context(), "c") },
	} {
		require.NoError(t, end())
		assert.Empty(t, s.pods)
	}
}

func TestEarlier(t *testing.T) {
	var none time.Time
	first, second := time.Unix(1, 0), time.Unix(2, 0)
	for _, tt := range [][3]time.Time{{none, none, none}, {first, none, first}, {none, first, first}, {first, second, first}, {second, first, first}} {
		assert.Equal(t, tt[2], earlier(tt[0], tt[1]))
	}
}
