package csi

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/internal/csitest"
	"github.com/sublet-dev/agent/volume"
)

// observer has what hooks were called with.
type observer struct {
	mu                sync.Mutex
	calls, operations []string
}

func (o *observer) observe(_ *testEnv, cfg *Config) {
	cfg.Hooks = Hooks{
		RPCEnded: func(driver, method, code string, _ time.Duration) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.calls = append(o.calls, strings.TrimPrefix(fmt.Sprint(driver, method, " ", code), csitest.Name))
			panic("defect of the application")
		},
		OperationEnded: func(op volume.Operation, _ time.Duration, err error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.operations = append(o.operations, fmt.Sprint(op.Name, " ", op.Kind.Plugin, " ", op.Kind.Driver == csitest.Name, " ", err == nil))
		},
	}
}

func (o *observer) take() (operations []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	operations, o.operations = o.operations, nil
	return operations
}

// AG-5: hooks get each call of a driver, and each operation on a volume besides mounting it.
func TestHooks_CallsAndOperations(t *testing.T) {
	var o observer
	e := newEnv(t, o.observe)
	e.setCSIDriver(*DefaultDriver("").Spec.DeepCopy())
	group := int64(os.Getegid())
	pod := newPod("1")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	v := e.volumeOf(pod, "v")
	e.mounted(v)
	require.Equal(t, []string{"volume_apply_access_control kubernetes.io/csi true true"}, o.take())
	v.PersistentVolume.Spec.Capacity["storage"] = resource.MustParse("2Gi")
	e.mounted(v)
	e.mounted(v)
	require.Equal(t, []string{"volume_fs_resize kubernetes.io/csi true true"}, o.take())

	e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
		if method == "NodeUnstageVolume" {
			return status.Error(codes.Code(4711), "busy")
		}
		return nil
	})
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, e.Unmount(stopped, pod.UID))
	require.Empty(t, o.take(), "an agent that stops has no failures")
	e.Deregister(t.Context(), e.plugin())
	require.Error(t, e.Unmount(t.Context(), pod.UID))
	require.Equal(t, []string{"volume_unmount kubernetes.io/csi true false"}, o.take())
	e.register()
	e.unmounted(pod)
	require.Equal(t, []string{"volume_unmount kubernetes.io/csi true true", "unmount_device kubernetes.io/csi true false"}, o.take())
	e.driver.SetBefore(nil)
	e.unstageOrphans()
	require.Equal(t, []string{"unmount_device kubernetes.io/csi true true"}, o.take())
	e.requireNothingLeft()

	o.mu.Lock()
	defer o.mu.Unlock()
	for _, call := range []string{
		"/csi.v1.Identity/GetPluginInfo OK", "/csi.v1.Node/NodePublishVolume OK", "/csi.v1.Node/NodeUnstageVolume Code(4711)", "/csi.v1.Node/NodeUnstageVolume OK",
	} {
		require.True(t, slices.Contains(o.calls, call), "%s of %q", call, o.calls)
	}
}

// A Manager without a Recorder has no events.
func TestManager_WithoutRecorder(t *testing.T) {
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Recorder = nil })
	e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
		if method == "NodeExpandVolume" {
			return status.Error(codes.Internal, "no")
		}
		return nil
	})
	v := e.volumeOf(newPod("1"), "v")
	_, err := e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "NodeExpandVolume")
	e.unmounted(v.Pod)
	assert.Empty(t, e.recorded("VolumeResizeFailed"))
}
