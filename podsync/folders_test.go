package podsync_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// A turn that makes something has its folders, whoever removed them; one in which
// there is nothing to do looks for them once in a while.
func TestFoldersAreThereWhenTheyAreNeeded(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning}
	cfg := config(t, n)
	synctest.Test(t, func(t *testing.T) {
		s, p := newSyncer(t, cfg), pod()
		atRest := runtime.Pod{
			UID: p.UID, ObservedAt: time.Now(),
			Sandboxes: []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, IPs: []string{"10.0.0.1"}}},
			Containers: []runtime.Container{{
				ID: "c", Name: "main", SandboxID: "s", State: runtime.Running, Hash: runtime.HashContainer(&p.Spec.Containers[0]),
			}},
		}
		turn := func(seen runtime.Pod) {
			n.trace = nil
			_, err := s.Sync(t.Context(), p, seen)
			require.NoError(t, err)
		}
		dir := filepath.Join(cfg.PodsDir, "uid-1")
		turn(atRest)
		require.NotContains(t, n.trace, "apply", "there is nothing to do")
		require.DirExists(t, dir, "a new process looks")

		for _, folder := range []string{cfg.PodsDir, cfg.LogsDir} {
			require.NoError(t, os.RemoveAll(folder))
		}
		turn(atRest)
		require.NoDirExists(t, dir)
		turn(runtime.Pod{UID: p.UID, ObservedAt: time.Now()})
		require.Contains(t, n.trace, "apply")
		require.DirExists(t, dir)
		require.DirExists(t, filepath.Join(cfg.LogsDir, "default_web_uid-1"))

		require.NoError(t, os.RemoveAll(cfg.PodsDir))
		time.Sleep(10 * time.Minute)
		turn(atRest)
		require.DirExists(t, dir)
	})
}
