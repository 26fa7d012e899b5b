package csi

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// VD-5: an expansion is reported in the claim's status, with an error that ends it. One that is
// infeasible is not tried again until that status changes.
func TestMount_ReportsExpansions(t *testing.T) {
	cluster := new(fakeCluster)
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster })
	v := e.volumeOf(newPod("1"), "v")
	v.Claim.Name = "c"
	e.mounted(v)
	fails := func(code codes.Code) {
		e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
			if method == "NodeExpandVolume" && code != codes.OK {
				return status.Error(code, "no")
			}
			return nil
		})
	}
	grow := func(size string, st corev1.ClaimResourceStatus) (reported []string, calls int) {
		e.driver.TakeCalls()
		cluster.reported = nil
		v.PersistentVolume.Spec.Capacity["storage"] = resource.MustParse(size)
		v.Claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{"storage": st}
		e.mounted(v)
		return cluster.reported, len(e.driver.Calls("NodeExpandVolume"))
	}
	expect := func(size string, st corev1.ClaimResourceStatus, want []string, calls int, msg string) {
		t.Helper()
		reported, n := grow(size, st)
		assert.Equal(t, want, reported, msg)
		assert.Equal(t, calls, n, msg)
	}
	const pending, inProgress, infeasible = corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible
	const no = "CSI driver csitest.example: NodeExpandVolume: no"
	request := func(size string) {
		v.Claim.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse(size)}
	}

	cluster.unable = errors.New("no API server")
	expect("2Gi", pending, []string{"expanding c"}, 0, "the status comes first")
	cluster.unable = nil
	expect("2Gi", pending, []string{"expanding c"}, 1, "")
	assert.Equal(t, int64(2<<30), e.driver.Size("v"))

	request("3Gi")
	fails(codes.Unavailable)
	expect("3Gi", inProgress, nil, 1, "it may be under way still")
	fails(codes.Internal)
	for range 2 {
		expect("3Gi", inProgress, []string{"failed c, infeasible false: " + no}, 1, "the claim requests this size")
	}
	request("2500Mi")
	expect("3Gi", inProgress, []string{"failed c, infeasible true: " + no}, 1, "it requests another one by now")
	expect("3Gi", infeasible, nil, 0, "")
	for _, code := range []codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.NotFound} {
		fails(code)
		expect("4Gi", pending, []string{"expanding c", "failed c, infeasible true: " + no}, 1, code.String())
	}
	fails(codes.FailedPrecondition)
	expect("5Gi", inProgress, nil, 1, "it is in use")
	fails(codes.OutOfRange)
	expect("6Gi", "", nil, 1, "the resizer does not know the status")

	e.unmounted(v.Pod)
	expect("6Gi", infeasible, nil, 0, "the pod starts with the volume as it is")
	fails(codes.OK)
	expect("7Gi", pending, []string{"expanding c"}, 1, "")
	assert.Equal(t, int64(7<<30), e.driver.Size("v"))
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}

// VD-5: a node waits for a resizer that says in the claim when its turn is.
func TestMount_WaitsForTheResizer(t *testing.T) {
	cluster := new(fakeCluster)
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster })
	v := e.volumeOf(newPod("1"), "v")
	v.PersistentVolume.Spec.Capacity = corev1.ResourceList{"storage": resource.MustParse("2Gi")}
	st := &v.Claim.Status
	st.Capacity = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
	st.AllocatedResources = v.PersistentVolume.Spec.Capacity
	for _, status := range []corev1.ClaimResourceStatus{
		"", corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible, "OfALaterVersion",
	} {
		st.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{"storage": status}
		for range 2 { // when it is mounted, and when it is in use
			e.mounted(v)
			assert.Empty(t, e.driver.Calls("NodeExpandVolume"), status)
		}
		e.unmounted(v.Pod)
	}
	e.mounted(v)
	st.AllocatedResourceStatuses["storage"] = corev1.PersistentVolumeClaimNodeResizePending
	e.mounted(v)
	assert.Equal(t, int64(2<<30), e.driver.Size("v"))
	e.unmounted(v.Pod)
}

// VD-5: a volume that several nodes may write to is expanded on each of them. The claim has the new size as
// soon as the first one has done so.
func TestMount_ExpandsWhatAnotherNodeHasExpanded(t *testing.T) {
	for name, tc := range map[string]struct {
		mode        corev1.PersistentVolumeAccessMode
		annotations map[string]string
		code        codes.Code // of the answer
		want        int64      // size after it
	}{
		"which several nodes may write to":       {corev1.ReadWriteMany, nil, codes.OK, 2 << 30},
		"but not what one node has":              {corev1.ReadWriteOnce, nil, codes.OK, 0},
		"but not what grows without its nodes":   {corev1.ReadWriteMany, map[string]string{expansionNotRequired: "true"}, codes.OK, 0},
		"and a failure does not disturb the pod": {corev1.ReadWriteMany, nil, codes.Internal, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := new(fakeCluster)
			e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster })
			v := e.volumeOf(newPod("1"), "v")
			resize := func(size string) {
				q := corev1.ResourceList{"storage": resource.MustParse(size)}
				v.PersistentVolume.Spec.Capacity, v.Claim.Status.Capacity = q, q
			}
			v.PersistentVolume.Spec.AccessModes, v.Claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{tc.mode}, []corev1.PersistentVolumeAccessMode{tc.mode}
			v.Claim.Annotations = tc.annotations
			resize("1Gi")
			e.mounted(v)
			require.Empty(t, e.driver.Calls("NodeExpandVolume"), "the node got it with this size")

			e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
				if method == "NodeExpandVolume" && tc.code != codes.OK {
					return status.Error(tc.code, "no")
				}
				return nil
			})
			resize("2Gi")
			for range 2 {
				e.mounted(v)
			}
			assert.Equal(t, tc.want, e.driver.Size("v"))
			assert.Empty(t, cluster.reported, "the claim has the size already")
			if tc.want > 0 {
				assert.Len(t, e.driver.Calls("NodeExpandVolume"), 1)
			}

			e.unmounted(v.Pod)
			e.driver.SetBefore(nil)
			e.driver.TakeCalls()
			e.mounted(v)
			assert.Empty(t, e.driver.Calls("NodeExpandVolume"), "the node gets it with the new size")
			e.unmounted(v.Pod)
			e.requireNothingLeft()
		})
	}
}

// VD-5: a volume is expanded to what the resizer has allocated for its claim. The PersistentVolume may be larger, as its storage system has rounded.
func TestMount_ExpandsToTheAllocatedSize(t *testing.T) {
	cluster := new(fakeCluster)
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster })
	v := e.volumeOf(newPod("1"), "v")
	st := &v.Claim.Status
	st.Capacity = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
	e.mounted(v)
	v.PersistentVolume.Spec.Capacity = corev1.ResourceList{"storage": resource.MustParse("3Gi")}
	st.AllocatedResources = corev1.ResourceList{"storage": resource.MustParse("2500Mi")}
	st.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{"storage": corev1.PersistentVolumeClaimNodeResizePending}
	e.mounted(v)
	assert.Equal(t, int64(2500<<20), e.driver.Size("v"))
	assert.Len(t, cluster.expanded, 1)
	assert.Equal(t, []string{`pod-1: volume "data" has 2500Mi now`}, e.recorded("FileSystemResizeSuccessful"))

	st.Capacity, st.AllocatedResourceStatuses = st.AllocatedResources, nil // as it was reported
	e.driver.TakeCalls()
	e.mounted(v)
	e.unmounted(v.Pod)
	e.mounted(v)
	assert.Empty(t, e.driver.Calls("NodeExpandVolume"), "it has the size")
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}
