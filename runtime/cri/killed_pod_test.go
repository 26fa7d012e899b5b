package cri

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// While a pod is killed, an inspection asks for the statuses of what there is, and finds what the lists would have. The
// one after that uses lists.
func TestAPodIsInspectedWithoutListsWhileItIsKilled(t *testing.T) {
	for name, tc := range map[string]struct {
		rpc   string // before which it is inspected
		state runtime.ContainerState
		ready bool
		spoil func(f *fake)
		lists int
	}{
		"while it runs":                {rpc: "StopContainer", state: runtime.Running, ready: true},
		"when its container has ended": {rpc: "StopPodSandbox", state: runtime.Exited, ready: true},
		"when its sandbox has ended": {rpc: "StopPodSandbox", state: runtime.Exited, spoil: func(f *fake) {
			for _, s := range f.sandboxes {
				s.State = v1.PodSandboxState_SANDBOX_NOTREADY
			}
		}},
		"when something is missing": {rpc: "StopPodSandbox", ready: true, spoil: func(f *fake) { clear(f.containers) }, lists: 1},
		"when a status call fails": {rpc: "StopContainer", state: runtime.Running, ready: true, spoil: func(f *fake) {
			failed := false
			f.before = func(_ context.Context, rpc string, _ any) error {
				if rpc == "ContainerStatus" && !failed {
					failed = true
					return status.Error(codes.Internal, "failed")
				}
				return nil
			}
		}, lists: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f, pod := newFake(), onePod("main")
			c := f.client(t, Config{})
			observed := running(t, f, c, pod)
			var during, asked runtime.Pod
			lists := 0
			f.setBefore(func(ctx context.Context, rpc string, _ any) error {
				if rpc != tc.rpc {
					return nil
				}
				f.mu.Lock()
				f.before = nil
				if tc.spoil != nil {
					tc.spoil(f)
				}
				f.mu.Unlock()
				before := f.count("ListContainers")
				var err error
				during, err = c.Pod(ctx, pod.UID)
				assert.NoError(t, err)
				lists = f.count("ListContainers") - before
				asked, err = f.client(t, Config{}).Pod(ctx, pod.UID)
				assert.NoError(t, err)
				return nil
			})
			require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: time.Second}))
			assert.Equal(t, tc.lists, lists)
			assert.Equal(t, tc.ready, during.HasReadySandbox())
			if len(f.containers) > 0 {
				require.Len(t, during.Containers, 1)
				assert.Equal(t, tc.state, during.Containers[0].State)
			}
			during.ObservedAt, asked.ObservedAt = time.Time{}, time.Time{}
			assert.Equal(t, asked, during)

			before := f.count("ListContainers")
			after, err := c.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			assert.Equal(t, 1, f.count("ListContainers")-before)
			assert.False(t, after.CouldHaveRunningContainers())
			assert.False(t, after.HasReadySandbox())
		})
	}
}
