package podsync_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// PS-7: a pod with a volume for which the node has no place fails, unless it runs, or nothing would replace it.
func TestSync_VolumeLimit(t *testing.T) {
	full := fmt.Errorf("volume \"data\": %w: busy", runtime.ErrVolumeLimit)
	running := runtime.Pod{
		Sandboxes:  []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, IPs: []string{"10.0.0.1"}}},
		Containers: []runtime.Container{{ID: "c", Name: "main", SandboxID: "s", State: runtime.Running}},
	}
	for name, tt := range map[string]struct {
		err      error
		observed runtime.Pod
		static   bool
		fails    bool
	}{
		"no place":         {err: full, fails: true},
		"another error":    {err: runtime.ErrUnavailable},
		"a pod that runs":  {err: full, observed: running},
		"a pod of a file":  {err: full, static: true},
		"an empty sandbox": {err: full, observed: runtime.Pod{Sandboxes: running.Sandboxes}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newTestPod()
			if tt.static {
				pod.Annotations = map[string]string{podspec.AnnotationSource: "file"}
			}
			n := &fakeNode{phase: corev1.PodPending, fail: map[string]error{"mount": tt.err}}
			cfg, rejected := newConfig(t, n), []string(nil)
			cfg.Hooks.Rejected = func(_ *corev1.Pod, reason, message string) { rejected = append(rejected, reason+": "+message) }
			out, err := newSyncer(t, cfg).Sync(t.Context(), pod, tt.observed)
			require.NotContains(t, n.trace, "apply")
			if !tt.fails {
				require.ErrorIs(t, err, tt.err)
				require.Empty(t, n.kills)
				require.Empty(t, rejected)
				return
			}
			require.NoError(t, err)
			require.True(t, out.Unchanged)
			require.Equal(t, []runtime.Termination{{
				GracePeriod: podspec.GracePeriod(pod), Reason: "VolumeAttachmentLimitExceeded",
				Message: "Pod was rejected: mount volumes: " + full.Error(),
			}}, n.kills)
			require.Equal(t, []string{"VolumeAttachmentLimitExceeded: mount volumes: " + full.Error()}, rejected)
			require.Len(t, n.events, 1)
			require.Equal(t, "VolumeAttachmentLimitExceeded", n.events[0].Reason)
		})
	}
}
