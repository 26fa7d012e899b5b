package podsync_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

// OW-1: a log directory is removed only by the agent that made it or runs its pod.
func TestFinish_KeepsLogDirectoriesOfOtherAgents(t *testing.T) {
	sandbox := runtime.Pod{UID: "uid-1", Sandboxes: []runtime.Sandbox{{ID: "s", State: runtime.SandboxNotReady}}}
	for _, tt := range []struct {
		name     string
		there    bool   // before the first sync
		mark     string // that it has then
		observed runtime.Pod
		marked   string // after the sync
		removed  bool
	}{
		{name: "made by this agent", marked: "one", removed: true},
		{name: "another agent's, with the same UID", there: true, mark: "two", marked: "two"},
		{name: "a kubelet's, with the same UID", there: true},
		{name: "its own, killed before it was marked", there: true, observed: sandbox, marked: "one", removed: true},
		{name: "another agent's, though the pod is in the runtime", there: true, mark: "two", observed: sandbox, marked: "two"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodPending, observed: tt.observed}
			cfg := newConfig(t, n)
			cfg.Owner = func() string { return "one" }
			dir := filepath.Join(cfg.LogsDir, "default_web_uid-1")
			if tt.there {
				require.NoError(t, os.MkdirAll(dir, 0o755))
			}
			root, err := os.OpenRoot(filepath.Dir(filepath.Dir(dir)))
			require.NoError(t, err)
			defer root.Close()
			name := filepath.Join(filepath.Base(filepath.Dir(dir)), filepath.Base(dir))
			if tt.mark != "" {
				require.NoError(t, owner.Mark(root, name, tt.mark))
			}
			s := newSyncer(t, cfg)
			_, err = s.Sync(t.Context(), newTestPod(), tt.observed)
			require.NoError(t, err)
			assert.Equal(t, tt.marked, owner.MarkOf(root, name))
			require.NoError(t, s.Terminate(t.Context(), newTestPod(), tt.observed, runtime.Termination{Deleted: true}))
			require.NoError(t, s.Finish(t.Context(), newTestPod(), runtime.Termination{Deleted: true}))
			if tt.removed {
				assert.NoDirExists(t, dir)
			} else {
				assert.DirExists(t, dir)
			}
		})
	}
}

// OW-1: an agent that is killed while it makes a log directory leaves none that belongs to no agent.
func TestSync_KilledWhileItMakesTheLogDirectory(t *testing.T) {
	cfg := newConfig(t, &fakeNode{phase: corev1.PodPending})
	cfg.Owner = func() string { panic("killed") }
	assert.Panics(t, func() { _, _ = newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runtime.Pod{}) })
	cfg.Owner = func() string { return "one" }
	_, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	root, err := os.OpenRoot(cfg.LogsDir)
	require.NoError(t, err)
	defer root.Close()
	assert.Equal(t, "one", owner.MarkOf(root, "default_web_uid-1"))
}
