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

// PS-1: a sync that creates something recreates missing directories. A sync that has
// nothing to do checks them every ten minutes.
func TestSync_RecreatesDirectories(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning}
	cfg := newConfig(t, n)
	synctest.Test(t, func(t *testing.T) {
		s, p := newSyncer(t, cfg), newTestPod()
		unchanged := runtime.Pod{
			UID: p.UID, ObservedAt: time.Now(),
			Sandboxes: []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, IPs: []string{"10.0.0.1"}}},
			Containers: []runtime.Container{{
				ID: "c", Name: "main", SandboxID: "s", State: runtime.Running, Hash: runtime.HashContainer(&p.Spec.Containers[0]),
			}},
		}
		syncOnce := func(observed runtime.Pod) {
			n.trace = nil
			_, err := s.Sync(t.Context(), p, observed)
			require.NoError(t, err)
		}
		dir := filepath.Join(cfg.PodsDir, "uid-1")
		syncOnce(unchanged)
		require.NotContains(t, n.trace, "apply", "nothing is planned")
		require.DirExists(t, dir, "a new process checks them")

		for _, root := range []string{cfg.PodsDir, cfg.LogsDir} {
			require.NoError(t, os.RemoveAll(root))
		}
		syncOnce(unchanged)
		require.NoDirExists(t, dir)
		syncOnce(runtime.Pod{UID: p.UID, ObservedAt: time.Now()})
		require.Contains(t, n.trace, "apply")
		require.DirExists(t, dir)
		require.DirExists(t, filepath.Join(cfg.LogsDir, "default_web_uid-1"))

		require.NoError(t, os.RemoveAll(cfg.PodsDir))
		time.Sleep(10 * time.Minute)
		syncOnce(unchanged)
		require.DirExists(t, dir)
	})
}
