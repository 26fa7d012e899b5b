package kubeapi

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
)

// newNodeAPI returns an API with a node.
func newNodeAPI(t *testing.T, node func(context.Context) (*corev1.Node, error)) *API {
	t.Helper()
	a, err := New(Config{NodeName: "edge-1", Pods: func() []*corev1.Pod { return nil }, Node: node})
	require.NoError(t, err)
	return a
}

// The lease is renewed every ten seconds, and watchers are not informed more often.
func TestAPI_LeaseOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newNodeAPI(t, func(context.Context) (*corev1.Node, error) { return &corev1.Node{}, nil })
		started := time.Now()
		get := func() *coordinationv1.Lease {
			t.Helper()
			require.NoError(t, a.refreshLease(t.Context()))
			l, ok := a.lease.get("kube-node-lease", "edge-1").(*coordinationv1.Lease)
			require.True(t, ok)
			return l
		}
		first := get()
		assert.Equal(t, "edge-1", *first.Spec.HolderIdentity)
		assert.Equal(t, int32(40), *first.Spec.LeaseDurationSeconds)
		assert.Equal(t, started.UnixMicro(), first.Spec.RenewTime.UnixMicro())
		assert.Equal(t, started.Unix(), first.CreationTimestamp.Unix())
		assert.NotEmpty(t, first.UID)
		time.Sleep(10*time.Second - time.Nanosecond)
		assert.Equal(t, first, get())
		time.Sleep(time.Nanosecond)
		second := get()
		assert.Equal(t, 10*time.Second, second.Spec.RenewTime.Sub(first.Spec.RenewTime.Time))
		assert.NotEqual(t, first.ResourceVersion, second.ResourceVersion)
		assert.Equal(t, []any{"edge-1", "edge-1", "10s"}, leaseTable().cells(second, time.Now()))
		assert.Nil(t, leaseTable().cells(&corev1.Node{}, time.Now()))
	})
}

// The clock of a board without one of its own is set after the agent has started.
func TestAPI_ClockIsSetAfterTheStart(t *testing.T) {
	a := newNodeAPI(t, func(context.Context) (*corev1.Node, error) { return &corev1.Node{}, nil })
	const years = 20 * 365 * 24 * 3600
	a.started = time.Now().Add(-time.Hour)
	// The wall clock of a time is in its first word, seconds above 30 bits of nanoseconds. The monotonic reading stays.
	*(*uint64)(unsafe.Pointer(&a.started)) -= years << 30
	require.InDelta(t, time.Hour, time.Since(a.started), float64(time.Minute))
	require.InDelta(t, years, time.Now().Unix()-a.started.Unix(), 3700)
	require.NoError(t, a.refreshLease(t.Context()))
	l, ok := a.lease.get("kube-node-lease", "edge-1").(*coordinationv1.Lease)
	require.True(t, ok)
	assert.WithinDuration(t, time.Now(), l.Spec.RenewTime.Time, time.Minute)
	require.NoError(t, a.refreshNode(t.Context()))
	for _, o := range []object{l, a.node.get("", "edge-1")} {
		assert.WithinDuration(t, time.Now().Add(-time.Hour), o.GetCreationTimestamp().Time, time.Minute)
	}
}

func TestAPI_Node(t *testing.T) {
	given := &corev1.Node{}
	a := newNodeAPI(t, func(context.Context) (*corev1.Node, error) { return given, errors.New("one part is not known") })
	get := func() *corev1.Node {
		t.Helper()
		require.NoError(t, a.refreshNode(t.Context()))
		n, ok := a.node.get("", "edge-1").(*corev1.Node)
		require.True(t, ok)
		return n
	}
	assert.Equal(t, kubernetesVersion, get().Status.NodeInfo.KubeletVersion, "kubectl get nodes has a column for it")
	assert.Empty(t, given.Name, "the node is read-only")
	given.Status.NodeInfo.KubeletVersion = "v1.2.3"
	assert.Equal(t, "v1.2.3", get().Status.NodeInfo.KubeletVersion)
	given = nil
	assert.ErrorContains(t, a.refreshNode(t.Context()), "is not known")
}
