package csi

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/csitest"
	"github.com/sublet-dev/agent/volume"
)

// A volume stays staged while a pod may have it whose record is damaged, whatever ends beside it: until the pod
// is synced, which repairs the record, or has ended.
func TestManager_DamagedRecordsAreInUse(t *testing.T) {
	for _, how := range []string{"synced", "ended"} {
		e := newEnv(t, nil)
		one, two := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "v")
		path := e.mounted(one)
		e.mounted(two)
		if how == "ended" { // by then nothing is mounted there, which is all that is known of it
			require.NoError(t, e.unpublish(t.Context(), e.clients[csitest.Name], "1", &stagedVolume))
		}
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), recordName), nil, 0o600))
		e.restart(nil)
		e.register()
		e.methods()
		e.unmounted(two.Pod)
		require.NoError(t, e.unstageOrphan(t.Context(), stagedVolume))
		require.Equal(t, []string{"NodeUnpublishVolume"}, e.methods())
		if how == "synced" {
			e.mounted(one)
			e.methods()
		}
		e.unmounted(one.Pod)
		require.NoError(t, e.unstageOrphan(t.Context(), stagedVolume))
		require.Contains(t, e.methods(), "NodeUnstageVolume")
		e.requireNothingLeft()
	}
}

// So does what is staged for another PersistentVolume with its handle, which only its record has. While no other record has it, the volume may be any.
func TestManager_DamagedRecordsOfSharedHandlesAreInUse(t *testing.T) {
	for _, isKnown := range []bool{false, true} {
		e := newEnv(t, nil)
		shared := func(uid string) volume.DriverVolume {
			v := e.volumeOf(newPod(uid), "v")
			v.PersistentVolume.Name = "pv-other"
			return v
		}
		one, damaged, alone := e.volumeOf(newPod("1"), "v"), shared("2"), e.volumeOf(newPod("3"), "w")
		path := e.mounted(damaged)
		e.mounted(one) // by whose name it is staged from now on
		e.mounted(alone)
		if isKnown {
			e.mounted(shared("4"))
		}
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), recordName), nil, 0o600))
		e.restart(nil)
		e.register()
		e.methods()
		want := []string{"NodeUnpublishVolume"}
		if isKnown {
			want = append(want, "NodeUnstageVolume")
		}
		e.unmounted(alone.Pod)
		require.Equal(t, want, e.methods())
		for _, pod := range []*corev1.Pod{one.Pod, newPod("4")} {
			e.unmounted(pod)
			e.unstageOrphans()
			require.NotContains(t, e.methods(), "NodeUnstageVolume", "a pod that runs may have it")
		}
		e.mounted(damaged)
		e.unmounted(damaged.Pod)
		e.unstageOrphans()
		e.requireNothingLeft()
	}
}

// VD-2: a volume whose record of its staging is lost is unstaged all the same, for as long as that takes.
func TestUnmount_UnstagesWithoutItsRecord(t *testing.T) {
	cluster := new(fakeCluster)
	attach := func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster }
	e := newEnv(t, attach)
	v := e.volumeOf(newPod("1"), "v")
	e.mounted(v)
	dir, _ := e.paths.staging(&stagedVolume)
	require.NoError(t, os.Remove(filepath.Join(dir, recordName)))
	e.restart(attach)
	e.register()
	e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
		if method == "NodeUnstageVolume" {
			return status.Error(codes.Internal, "no")
		}
		return nil
	})
	e.methods()
	e.unmounted(v.Pod)
	assert.Equal(t, []string{"NodeUnpublishVolume", "NodeUnstageVolume"}, e.methods())
	e.restart(attach)
	e.register()
	assert.Equal(t, []corev1.UniqueVolumeName{"kubernetes.io/csi/csitest.example^v"}, e.VolumesInUse(), "it must not be detached")
	e.driver.SetBefore(nil)
	e.unstageOrphans()
	e.requireNothingLeft()
}

// VD-7: whether volumes are in use is unknown while records cannot be read, which is not the same as none.
func TestManager_VolumesInUseMayBeUnknown(t *testing.T) {
	root := t.TempDir()
	m, err := New(Config{Root: root, NodeName: "node"})
	require.NoError(t, err)
	require.NoError(t, os.Symlink("pods", filepath.Join(root, "pods"))) // a loop
	assert.Nil(t, m.VolumesInUse())
	require.NoError(t, os.Remove(filepath.Join(root, "pods")))
	none := m.VolumesInUse()
	assert.NotNil(t, none)
	assert.Empty(t, none)
}
