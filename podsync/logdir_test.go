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

// OW-1: a log directory is removed only by who made it, or runs the pod it is of.
func TestSyncer_LogDirectoriesOfOthersStay(t *testing.T) {
	sandbox := runtime.Pod{UID: "uid-1", Sandboxes: []runtime.Sandbox{{ID: "s", State: runtime.SandboxNotReady}}}
	for _, tt := range []struct {
		name   string
		there  bool   // before the first sync
		mark   string // that it bears then
		seen   runtime.Pod
		marked string // after the sync
		goes   bool
	}{
		{name: "made by this agent", marked: "one", goes: true},
		{name: "another agent's of the same UID", there: true, mark: "two", marked: "two"},
		{name: "a kubelet's of the same UID", there: true},
		{name: "its own, cut short before the mark", there: true, seen: sandbox, marked: "one", goes: true},
		{name: "another agent's, though the pod is in the runtime", there: true, mark: "two", seen: sandbox, marked: "two"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodPending, seen: tt.seen}
			cfg := config(t, n)
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
			_, err = s.Sync(t.Context(), pod(), tt.seen)
			require.NoError(t, err)
			assert.Equal(t, tt.marked, owner.MarkOf(root, name))
			require.NoError(t, s.Terminate(t.Context(), pod(), tt.seen, runtime.Termination{Deleted: true}))
			require.NoError(t, s.Finish(t.Context(), pod(), runtime.Termination{Deleted: true}))
			if tt.goes {
				assert.NoDirExists(t, dir)
			} else {
				assert.DirExists(t, dir)
			}
		})
	}
}
