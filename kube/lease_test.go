package kube

import (
	"errors"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"
)

// A lease that another agent renews too makes the node not Ready, and Ready again once
// the other is gone.
func TestNode_TwoAgentsWithOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startNode(t, NodeConfig{})
		conflict := apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "n", errors.New("changed"))
		var other atomic.Bool
		last := time.Time{}
		b.client.PrependReactor("update", "leases", func(a k8stesting.Action) (bool, runtime.Object, error) {
			current := b.lease().DeepCopy()
			if !other.Load() || current.Spec.RenewTime.Time.Equal(last) {
				return false, nil, nil
			}
			// The other agent was first.
			last = time.Now().Truncate(time.Microsecond).Add(time.Millisecond)
			current.Spec.RenewTime = &metav1.MicroTime{Time: last}
			return true, nil, errors.Join(b.client.Tracker().Update(schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, current, corev1.NamespaceNodeLease), conflict)
		})
		b.run()
		require.NoError(t, b.node.Check())
		other.Store(true)
		b.wait(time.Minute)
		require.ErrorIs(t, b.node.Check(), ErrNodeNameInUse)
		ready := conditionOf(b.get(), corev1.NodeReady)
		assert.Equal(t, corev1.ConditionFalse, ready.Status)
		assert.Contains(t, ready.Message, "another agent renews the lease")
		other.Store(false)
		b.wait(time.Minute)
		require.NoError(t, b.node.Check())
		assert.Equal(t, corev1.ConditionTrue, conditionOf(b.get(), corev1.NodeReady).Status)
	})
}

// An edit of the lease, and a last renewal by a previous agent, are no contention.
func TestNode_OneForeignRenewalIsNoContention(t *testing.T) {
	l := &lease{duration: 40 * time.Second, log: slog.New(slog.DiscardHandler)}
	base := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now()}}}
	l.latest = base
	foreign := base.DeepCopy()
	l.noteForeign(foreign)
	assert.Zero(t, l.foreign, "an edit that renews nothing")
	foreign.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(time.Second)}
	l.noteForeign(foreign)
	assert.False(t, l.isContended(time.Now()))
	l.sent = []time.Time{foreign.Spec.RenewTime.Time}
	l.noteForeign(foreign)
	assert.Equal(t, 1, l.foreign, "a renewal of ours whose response was lost")
}

// Where the API server commits renewals and its answers are lost, the renewals are still ours.
func TestNode_LostAnswersAreNoContention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startNode(t, NodeConfig{})
		leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
		calls := 0
		b.client.PrependReactor("update", "leases", func(a k8stesting.Action) (bool, runtime.Object, error) {
			sent := a.(k8stesting.UpdateAction).GetObject().(*coordinationv1.Lease).DeepCopy()
			if sent.ResourceVersion != b.lease().ResourceVersion {
				return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "n", errors.New("changed"))
			}
			calls++
			sent.ResourceVersion = strconv.Itoa(calls)
			return true, nil, errors.Join(b.client.Tracker().Update(leases, sent, corev1.NamespaceNodeLease), apierrors.NewTimeoutError("the answer is lost", 1))
		})
		b.run()
		b.wait(5 * time.Minute)
		assert.Greater(t, calls, 10)
		require.NoError(t, b.node.Check())
	})
}

// The node controller ignores a renewal that is older than the last: after the wall clock
// was set back, times go on from the last one.
func TestLease_TimeNeverGoesBack(t *testing.T) {
	l := &lease{name: "n", duration: 40 * time.Second, owner: func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}} }}
	future := time.Now().Add(time.Hour)
	got := l.next(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: future}}})
	assert.Equal(t, future.Add(time.Microsecond), got.Spec.RenewTime.Time)
	assert.Equal(t, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u"}}, got.OwnerReferences)
	got = l.next(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now().Add(-time.Hour)}}})
	assert.WithinDuration(t, time.Now(), got.Spec.RenewTime.Time, time.Minute)
}
