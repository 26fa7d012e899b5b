package kube

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sublet-dev/agent/internal/csiname"
	"github.com/sublet-dev/agent/podspec"
	agentruntime "github.com/sublet-dev/agent/runtime"
)

func newStorage(t *testing.T, cfg StorageConfig, existing ...runtime.Object) (*Storage, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(existing...)
	k, err := New(Config{Client: client, NodeName: "n"})
	require.NoError(t, err)
	s, err := k.Storage(cfg)
	require.NoError(t, err)
	return s, client
}

func TestStorage_Objects(t *testing.T) {
	s, client := newStorage(t, StorageConfig{},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.example"}})
	c, err := s.Claim(t.Context(), "ns", "c")
	require.NoError(t, err)
	assert.Equal(t, "c", c.Name)
	v, err := s.PersistentVolume(t.Context(), "pv")
	require.NoError(t, err)
	assert.Equal(t, "pv", v.Name)
	_, err = s.Claim(t.Context(), "other", "c")
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)
	_, err = s.PersistentVolume(t.Context(), "other")
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)
	_, err = s.CSIDriver(t.Context(), "other")
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)

	synctest.Test(t, func(t *testing.T) {
		_, err := s.CSIDriver(t.Context(), "csi.example")
		require.NoError(t, err)
		client.PrependReactor("get", "csidrivers", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("no answer")
		})
		time.Sleep(2 * csiDriverAge)
		d, err := s.CSIDriver(t.Context(), "csi.example")
		require.NoError(t, err, "the last answer counts")
		assert.Equal(t, "csi.example", d.Name)
		_, err = s.CSIDriver(t.Context(), "other")
		require.EqualError(t, err, "no answer")
	})
}

// VD-7: a volume is staged only after it was attached, and after the node was recorded to use it.
func TestStorage_Attached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unique := csiname.Unique("d", "h")
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		s, client := newStorage(t, StorageConfig{}, node)
		type answer struct {
			context map[string]string
			err     error
		}
		done := make(chan answer, 1)
		go func() {
			c, err := s.Attached(t.Context(), "d", "h")
			done <- answer{c, err}
		}()
		step := func(want string) {
			t.Helper()
			time.Sleep(3 * attachPollPeriod)
			select {
			case a := <-done:
				t.Fatal(a)
			default:
			}
			_, err := s.attached(t.Context(), "d", "h")
			require.ErrorContains(t, err, want)
		}
		step("get VolumeAttachment csi-")
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: csiname.Attachment("d", "h", "n")}}
		attachments := client.StorageV1().VolumeAttachments()
		_, err := attachments.Create(t.Context(), a, metav1.CreateOptions{})
		require.NoError(t, err)
		step("is not attached yet")
		a.Status.AttachError = &storagev1.VolumeError{Message: "no slot"}
		_, err = attachments.Update(t.Context(), a, metav1.UpdateOptions{})
		require.NoError(t, err)
		step("attach volume to the node: no slot")
		_, err = s.attached(t.Context(), "d", "h")
		require.NotErrorIs(t, err, agentruntime.ErrVolumeLimit)
		a.Status.AttachError.ErrorCode = new(int32(8))
		_, err = attachments.Update(t.Context(), a, metav1.UpdateOptions{})
		require.NoError(t, err)
		step("as many volumes as it can: no slot")
		_, err = s.attached(t.Context(), "d", "h")
		require.ErrorIs(t, err, agentruntime.ErrVolumeLimit)
		a.Status.Attached, a.Status.AttachmentMetadata = true, map[string]string{"device": "/dev/x"} // with the error of a later attempt
		_, err = attachments.Update(t.Context(), a, metav1.UpdateOptions{})
		require.NoError(t, err)
		step("not in the volumesInUse of the node yet")
		node.Status.VolumesInUse = []corev1.UniqueVolumeName{unique}
		_, err = client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
		step("not in the volumesAttached of the node yet")
		node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: unique}}
		_, err = client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
		got := <-done
		require.NoError(t, got.err)
		assert.Equal(t, map[string]string{"device": "/dev/x"}, got.context)

		now := metav1.Now()
		a.DeletionTimestamp, a.Finalizers = &now, []string{"x"}
		_, err = attachments.Update(t.Context(), a, metav1.UpdateOptions{})
		require.NoError(t, err)
		began := time.Now()
		_, err = s.Attached(t.Context(), "d", "h")
		require.ErrorContains(t, err, "is being deleted")
		assert.Equal(t, attachTimeout, time.Since(began))
	})
}

// The conditions of others stay, also those that the claim has got since the node has read it.
func TestStorage_Expanded(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"}, Status: corev1.PersistentVolumeClaimStatus{
		Capacity:                  corev1.ResourceList{"storage": resource.MustParse("1Gi")},
		AllocatedResourceStatuses: map[corev1.ResourceName]corev1.ClaimResourceStatus{"storage": corev1.PersistentVolumeClaimNodeResizePending},
		Conditions:                []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending}, {Type: "Mine"}},
	}}
	newer := claim.DeepCopy()
	newer.Status.Conditions[1].Message = "changed"
	newer.Status.Conditions = append(newer.Status.Conditions, corev1.PersistentVolumeClaimCondition{Type: "Theirs"})
	s, client := newStorage(t, StorageConfig{}, newer)
	v := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{Capacity: corev1.ResourceList{"storage": resource.MustParse("2Gi")}}}
	require.NoError(t, s.Expanded(t.Context(), claim, v))
	got, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "2Gi", got.Status.Capacity.Storage().String())
	assert.Empty(t, got.Status.AllocatedResourceStatuses)
	assert.Equal(t, newer.Status.Conditions[1:], got.Status.Conditions)
}

// A PersistentVolume can be larger than what was allocated for its claim.
func TestStorage_ExpandedToTheAllocatedSize(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"}}
	claim.Status.AllocatedResources = corev1.ResourceList{"storage": resource.MustParse("2500Mi")}
	s, client := newStorage(t, StorageConfig{}, claim)
	v := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{Capacity: corev1.ResourceList{"storage": resource.MustParse("3Gi")}}}
	require.NoError(t, s.Expanded(t.Context(), claim, v))
	got, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "2500Mi", got.Status.Capacity.Storage().String())
}

// An expansion is recorded in the claim's status, and nothing else of it is changed.
func TestStorage_ReportsExpansions(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"}, Status: corev1.PersistentVolumeClaimStatus{
		Capacity:                  corev1.ResourceList{"storage": resource.MustParse("1Gi")},
		AllocatedResourceStatuses: map[corev1.ResourceName]corev1.ClaimResourceStatus{"storage": corev1.PersistentVolumeClaimNodeResizePending, "example.com/x": "Theirs"},
		Conditions:                []corev1.PersistentVolumeClaimCondition{{Type: "Mine"}},
	}}
	s, client := newStorage(t, StorageConfig{}, claim)
	get := func() *corev1.PersistentVolumeClaim {
		t.Helper()
		got, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, "1Gi", got.Status.Capacity.Storage().String())
		assert.Equal(t, corev1.ClaimResourceStatus("Theirs"), got.Status.AllocatedResourceStatuses["example.com/x"])
		require.NotEmpty(t, got.Status.Conditions)
		assert.True(t, slices.ContainsFunc(got.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool { return c.Type == "Mine" }))
		return got
	}
	require.NoError(t, s.Expanding(t.Context(), claim))
	got := get()
	assert.Equal(t, corev1.PersistentVolumeClaimNodeResizeInProgress, got.Status.AllocatedResourceStatuses["storage"])
	assert.Len(t, got.Status.Conditions, 1)

	for infeasible, want := range map[bool]corev1.ClaimResourceStatus{
		false: corev1.PersistentVolumeClaimNodeResizeInProgress, true: corev1.PersistentVolumeClaimNodeResizeInfeasible,
	} {
		require.NoError(t, s.Expanding(t.Context(), claim))
		require.NoError(t, s.ExpansionFailed(t.Context(), claim, errors.New("disk is full"), infeasible))
		got := get()
		assert.Equal(t, want, got.Status.AllocatedResourceStatuses["storage"])
		i := slices.IndexFunc(got.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == corev1.PersistentVolumeClaimNodeResizeError
		})
		require.GreaterOrEqual(t, i, 0)
		assert.Equal(t, "True Expand the volume on its node: disk is full", string(got.Status.Conditions[i].Status)+" "+got.Status.Conditions[i].Message)
		assert.False(t, got.Status.Conditions[i].LastTransitionTime.IsZero())
	}
}

// The CSINode has the drivers of the node, and the Node their topology and ids.
func TestStorage_WritesCSINode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, client := newStorage(t, StorageConfig{Topology: func() map[string]string { return map[string]string{"rack.example/id": "7"} }},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}})
		var fail atomic.Bool // the next update
		client.PrependReactor("update", "csinodes", func(k8stesting.Action) (bool, runtime.Object, error) {
			return fail.Swap(false), nil, errors.New("conflict")
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		get := func() *storagev1.CSINode {
			t.Helper()
			time.Sleep(2 * csiNodeRetry)
			n, err := client.StorageV1().CSINodes().Get(ctx, "n", metav1.GetOptions{})
			require.NoError(t, err)
			return n
		}
		n := get()
		assert.Empty(t, n.Spec.Drivers)
		assert.Equal(t, "Node n u", n.OwnerReferences[0].Kind+" "+n.OwnerReferences[0].Name+" "+string(n.OwnerReferences[0].UID))
		one := storagev1.CSINodeDriver{Name: "one", NodeID: "id-1"}
		s.SetDrivers([]storagev1.CSINodeDriver{one})
		assert.Equal(t, []storagev1.CSINodeDriver{one}, get().Spec.Drivers)
		node, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, "7", node.Labels["rack.example/id"])
		assert.JSONEq(t, `{"one":"id-1"}`, node.Annotations[nodeIDAnnotation])

		client.ClearActions()
		s.SetDrivers([]storagev1.CSINodeDriver{one})
		get()
		for _, action := range client.Actions() {
			assert.Equal(t, "get", action.GetVerb(), "nothing has changed")
		}
		fail.Store(true)
		one.NodeID = "id-2"
		s.SetDrivers([]storagev1.CSINodeDriver{one})
		assert.Equal(t, []storagev1.CSINodeDriver{one}, get().Spec.Drivers, "it is tried again")
		s.SetDrivers(nil)
		assert.Empty(t, get().Spec.Drivers)
		cancel()
		require.NoError(t, <-done)
	})
}

// The garbage collector removes the CSINode of a Node that was deleted, sooner or later.
func TestStorage_NodeRecreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := func(uid types.UID) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: uid}}
		}
		s, client := newStorage(t, StorageConfig{Topology: func() map[string]string { return map[string]string{"rack.example/id": "7"} }}, node("1"))
		var log strings.Builder
		s.k.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		var down atomic.Bool
		client.PrependReactor("*", "*", func(k8stesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, errors.New("connection refused")
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		s.SetDrivers([]storagev1.CSINodeDriver{{Name: "one", NodeID: "id-1"}})
		requireWritten := func(uid types.UID) {
			t.Helper()
			time.Sleep(csiNodePeriod)
			synctest.Wait()
			n, err := client.StorageV1().CSINodes().Get(ctx, "n", metav1.GetOptions{})
			require.NoError(t, err)
			require.Len(t, n.OwnerReferences, 1)
			assert.Equal(t, uid, n.OwnerReferences[0].UID)
			assert.Len(t, n.Spec.Drivers, 1)
			got, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, "7", got.Labels["rack.example/id"])
			assert.JSONEq(t, `{"one":"id-1"}`, got.Annotations[nodeIDAnnotation])
		}
		requireWritten("1")
		replaceNode := func(uid types.UID) {
			t.Helper()
			require.NoError(t, client.CoreV1().Nodes().Delete(ctx, "n", metav1.DeleteOptions{}))
			_, err := client.CoreV1().Nodes().Create(ctx, node(uid), metav1.CreateOptions{})
			require.NoError(t, err)
		}
		replaceNode("2")
		requireWritten("2")
		replaceNode("3")
		require.NoError(t, client.StorageV1().CSINodes().Delete(ctx, "n", metav1.DeleteOptions{}))
		requireWritten("3")

		down.Store(true)
		time.Sleep(time.Hour)
		cancel()
		require.NoError(t, <-done)
		assert.Empty(t, log.String(), "there is nothing to write during an outage")
	})
}

// Drivers that a previous process has registered may come back for a while, whatever others do.
func TestStorage_ForgetsDriversThatDoNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := func(name string) storagev1.CSINodeDriver { return storagev1.CSINodeDriver{Name: name, NodeID: "id"} }
		a, b, c := driver("a"), driver("b"), driver("c")
		s, client := newStorage(t, StorageConfig{},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{nodeIDAnnotation: `{"a":"id","b":"id","c":"id"}`}}},
			&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{a, b, c}}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		requireDrivers := func(annotation string, want ...storagev1.CSINodeDriver) {
			t.Helper()
			synctest.Wait()
			n, err := client.StorageV1().CSINodes().Get(ctx, "n", metav1.GetOptions{})
			require.NoError(t, err)
			assert.ElementsMatch(t, want, n.Spec.Drivers)
			node, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
			require.NoError(t, err)
			assert.JSONEq(t, annotation, node.Annotations[nodeIDAnnotation])
		}
		requireDrivers(`{"a":"id","b":"id","c":"id"}`, a, b, c)
		s.SetDrivers([]storagev1.CSINodeDriver{b})
		requireDrivers(`{"a":"id","b":"id","c":"id"}`, a, b, c)
		s.SetDrivers(nil)
		requireDrivers(`{"a":"id","c":"id"}`, a, c)
		time.Sleep(absentDriverDelay - time.Second)
		s.SetDrivers([]storagev1.CSINodeDriver{c})
		requireDrivers(`{"a":"id","c":"id"}`, a, c)
		time.Sleep(2 * time.Second)
		requireDrivers(`{"c":"id"}`, c)
		s.SetDrivers(nil)
		requireDrivers(`{}`)
		cancel()
		require.NoError(t, <-done)
	})
}
