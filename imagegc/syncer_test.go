package imagegc_test

import (
	"cmp"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

var (
	_ imagegc.Syncer    = (*podsync.Syncer)(nil)
	_ podworkers.Syncer = imagegc.LeasingSyncer{}
	_ imagegc.Leaser    = (*imagegc.Collector)(nil)
)

// callLog is a Syncer and a Leaser that record their calls in order.
type callLog struct {
	calls               []string
	leaseErr, syncerErr error
}

func (l *callLog) Lease(_ context.Context, uid types.UID, refs []string) error {
	l.calls = append(l.calls, "lease "+string(uid)+" "+refs[0])
	return l.leaseErr
}

func (l *callLog) Release(uid types.UID) { l.calls = append(l.calls, "release "+string(uid)) }

func (l *callLog) Sync(context.Context, *corev1.Pod, runtime.Pod) (runtime.SyncResult, error) {
	l.calls = append(l.calls, "sync")
	return runtime.SyncResult{Terminal: true}, l.syncerErr
}

func (l *callLog) Terminate(context.Context, *corev1.Pod, runtime.Pod, runtime.Termination) error {
	l.calls = append(l.calls, "terminate")
	return l.syncerErr
}

func (l *callLog) Finish(context.Context, *corev1.Pod, runtime.Termination) error {
	l.calls = append(l.calls, "finish")
	return l.syncerErr
}

// IG-1: a pod has a lease on its images from before its first container is made until
// none can be started any more.
func TestLeasingSyncer(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "app"}}}}
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		leaseErr, syncerErr error
		want                []string
	}{
		"a pod that starts and ends":                 {nil, nil, []string{"lease u app", "sync", "terminate", "release u", "finish"}},
		"the lease stays if the termination fails":   {nil, boom, []string{"lease u app", "sync", "terminate", "finish"}},
		"the pod is not synced while it has to wait": {boom, nil, []string{"lease u app", "terminate", "release u", "finish"}},
	} {
		t.Run(name, func(t *testing.T) {
			log := &callLog{leaseErr: tt.leaseErr, syncerErr: tt.syncerErr}
			s := imagegc.LeasingSyncer{Syncer: log, Images: log}
			result, err := s.Sync(t.Context(), pod, runtime.Pod{})
			require.ErrorIs(t, err, cmp.Or(tt.leaseErr, tt.syncerErr))
			assert.Equal(t, tt.leaseErr == nil, result.Terminal)
			require.ErrorIs(t, s.Terminate(t.Context(), pod, runtime.Pod{}, runtime.Termination{}), tt.syncerErr)
			require.ErrorIs(t, s.Finish(t.Context(), pod, runtime.Termination{}), tt.syncerErr)
			assert.Equal(t, tt.want, log.calls)
		})
	}
}
