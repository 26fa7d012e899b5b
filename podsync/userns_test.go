package podsync_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

func withUserNamespace() *corev1.Pod {
	p, no := newTestPod(), false
	p.Spec.HostUsers = &no
	return p
}

// PS-1, PS-4: ids are allocated before anything else is created, and released after the
// directory of the pod, which records them, was removed.
func TestSync_AllocatesUserNamespaceFirst(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	cfg.UserNamespaces = userIDs{n}
	s := newSyncer(t, cfg)
	_, err := s.Sync(t.Context(), withUserNamespace(), runtime.Pod{})
	require.NoError(t, err)
	require.Equal(t, []string{"status", "ids of uid-1", "cgroup", "mount", "probes", "apply"}, n.trace)
	require.Equal(t, []runtime.IDMapping{{Host: 65536, Length: 1000}}, n.opts.UIDMappings)
	require.Equal(t, []runtime.IDMapping{{Host: 131072, Length: 1000}}, n.opts.GIDMappings)

	n.fail = map[string]error{"unmount": errors.New("busy")}
	require.Error(t, s.Finish(t.Context(), withUserNamespace(), runtime.Termination{}))
	require.NotContains(t, n.trace, "release ids of uid-1")
	n.fail = nil
	require.NoError(t, s.Finish(t.Context(), withUserNamespace(), runtime.Termination{}))
	require.Contains(t, n.trace, "release ids of uid-1")
	require.NoDirExists(t, filepath.Join(cfg.PodsDir, "uid-1"))
}

func TestSync_HostUsersNeedNoUserNamespace(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	cfg.UserNamespaces = userIDs{n}
	_, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	require.False(t, slices.Contains(n.trace, "ids of uid-1"))
	require.Empty(t, n.opts.UIDMappings)
}

func TestSync_WaitsForUserNamespace(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending, fail: map[string]error{"ids of uid-1": errors.New("used up")}}
	cfg := newConfig(t, n)
	cfg.UserNamespaces = userIDs{n}
	_, err := newSyncer(t, cfg).Sync(t.Context(), withUserNamespace(), runtime.Pod{})
	require.ErrorContains(t, err, "user namespace")
	require.ErrorContains(t, err, "used up")
	require.NotContains(t, n.trace, "apply")
	require.Equal(t, "FailedUserNamespace", n.events[0].Reason)
}

// PS-4: the ids of an orphan are released with its directory.
func TestCleanupOrphan_ReleasesUserNamespace(t *testing.T) {
	n := &fakeNode{}
	cfg := newConfig(t, n)
	cfg.UserNamespaces = userIDs{n}
	s := newSyncer(t, cfg)
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.PodsDir, "uid-7"), 0o700))
	require.NoError(t, s.CleanupOrphan(t.Context(), "uid-7"))
	require.Equal(t, []string{"unmount", "remove cgroup", "release ids of uid-7"}, n.trace)
	require.ErrorIs(t, s.CleanupOrphan(t.Context(), ".."), podsync.ErrUnsafeName)
}
