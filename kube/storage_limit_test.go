package kube

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sublet-dev/agent/internal/csiname"
	agentruntime "github.com/sublet-dev/agent/runtime"
)

// A driver is removed from the CSINode for a change only where the API server rejects that: without it, no pods with its
// volumes are placed on the node.
func TestStorage_ChangesDrivers(t *testing.T) {
	limited := func(id string, volumes int32) storagev1.CSINodeDriver {
		return storagev1.CSINodeDriver{Name: "one", NodeID: id, Allocatable: &storagev1.VolumeNodeResources{Count: &volumes}}
	}
	other := storagev1.CSINodeDriver{Name: "other", NodeID: "id"}
	for _, tt := range []struct {
		name          string
		mutableLimits bool // as since Kubernetes 1.36
		changed       storagev1.CSINodeDriver
		removed       bool
	}{
		{"a limit", true, limited("id", 7), false},
		{"a limit, on an older API server", false, limited("id", 7), true},
		{"an id", true, limited("id-2", 8), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, client := newStorage(t, StorageConfig{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}})
				current, removed := map[string]storagev1.CSINodeDriver{}, false
				client.PrependReactor("update", "csinodes", func(a k8stesting.Action) (bool, runtime.Object, error) {
					next := map[string]storagev1.CSINodeDriver{}
					for _, d := range a.(k8stesting.UpdateAction).GetObject().(*storagev1.CSINode).Spec.Drivers {
						next[d.Name] = d
					}
					for name, d := range next {
						before, ok := current[name]
						if tt.mutableLimits {
							before.Allocatable = d.Allocatable
						}
						if ok && !apiequality.Semantic.DeepEqual(before, d) {
							return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "CSINode"}, "n", nil)
						}
					}
					_, had := current["one"]
					_, has := next["one"]
					removed = removed || had && !has
					assert.True(t, len(current) == 0 || next["other"].Name != "", "nothing happens to the other driver")
					current = next
					return false, nil, nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- s.Run(ctx) }()
				for _, d := range []storagev1.CSINodeDriver{limited("id", 8), tt.changed} {
					time.Sleep(2 * csiNodeRetry)
					s.SetDrivers([]storagev1.CSINodeDriver{d, other})
				}
				time.Sleep(2 * csiNodeRetry)
				n, err := client.StorageV1().CSINodes().Get(ctx, "n", metav1.GetOptions{})
				require.NoError(t, err)
				assert.ElementsMatch(t, []storagev1.CSINodeDriver{tt.changed, other}, n.Spec.Drivers)
				cancel()
				require.NoError(t, <-done)
				assert.Equal(t, tt.removed, removed)
			})
		})
	}
}

// What the attacher says is not lost because the last request for it was cut off.
func TestStorage_AttachedReturnsTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: csiname.Attachment("d", "h", "n")}}
		a.Status.AttachError = &storagev1.VolumeError{Message: "no slot", ErrorCode: new(int32(codeResourceExhausted))}
		s, client := newStorage(t, StorageConfig{}, a)
		asked := 0
		client.PrependReactor("get", "volumeattachments", func(k8stesting.Action) (bool, runtime.Object, error) {
			if asked++; asked == 1 {
				return false, nil, nil
			}
			time.Sleep(attachTimeout)
			return true, nil, context.DeadlineExceeded
		})
		_, err := s.Attached(t.Context(), "d", "h")
		require.ErrorIs(t, err, agentruntime.ErrVolumeLimit)
		require.ErrorContains(t, err, "no slot")
	})
}
