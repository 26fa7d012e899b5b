package volume_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/volume"
)

// localEnv is a node with a local PersistentVolume, which has one file.
type localEnv struct {
	t         *testing.T
	dir, root string
	log       logtest.Buffer
	*volume.Manager
}

func newLocalEnv(t *testing.T) *localEnv {
	t.Helper()
	e := &localEnv{t: t, dir: t.TempDir(), root: t.TempDir()}
	require.NoError(t, os.WriteFile(e.file(), nil, 0o600))
	e.restart()
	return e
}

// restart replaces the Manager, as a new process does.
func (e *localEnv) restart() {
	e.t.Helper()
	var err error
	e.Manager, err = volume.New(volume.Config{
		Root: e.root, Logger: logtest.NewLogger(&e.log, slog.LevelInfo),
		Claims: boundClaim(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: e.dir}}),
	})
	require.NoError(e.t, err)
}

func (e *localEnv) file() string { return filepath.Join(e.dir, "file") }

func (e *localEnv) mark(uid types.UID) string {
	return filepath.Join(e.root, "pods", string(uid), "volumes/kubernetes.io~local-volume/pv")
}

// mounted mounts the volume for a pod and returns the mode that the file has then.
func (e *localEnv) mounted(pod *corev1.Pod) os.FileMode {
	e.t.Helper()
	volumes, err := e.Mount(e.t.Context(), pod, nil)
	require.NoError(e.t, err)
	require.Equal(e.t, e.dir, volumes["data"].HostPath)
	target, err := os.Readlink(e.mark(pod.UID))
	require.NoError(e.t, err)
	require.Equal(e.t, e.dir, target)
	info, err := os.Stat(e.file())
	require.NoError(e.t, err)
	return info.Mode().Perm()
}

func (e *localEnv) unmounted(pod *corev1.Pod) {
	e.t.Helper()
	require.NoError(e.t, e.Unmount(e.t.Context(), pod.UID))
	require.NoDirExists(e.t, filepath.Join(e.root, "pods", string(pod.UID)))
	require.FileExists(e.t, e.file(), "the link was not followed")
}

// narrow does what a container may do with a key.
func (e *localEnv) narrow() {
	e.t.Helper()
	require.NoError(e.t, os.Chmod(e.file(), 0o600))
}

// localPod has the volume, and the fsGroup of this process plus more; none if more is negative.
func localPod(uid types.UID, more int64) *corev1.Pod {
	pod := claimPod(viaClaim(false))
	pod.UID = uid
	if group := int64(os.Getegid()) + more; more >= 0 {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	}
	return pod
}

// What containers have changed stays so, also when the agent is started again.
func TestMount_LocalVolumeAfterARestart(t *testing.T) {
	e, pod := newLocalEnv(t), localPod("uid-1", 0)
	require.Equal(t, os.FileMode(0o660), e.mounted(pod))
	e.narrow()
	require.Equal(t, os.FileMode(0o600), e.mounted(pod))
	e.restart()
	require.Equal(t, os.FileMode(0o600), e.mounted(pod))

	require.NoError(t, os.Remove(e.mark(pod.UID)))
	_, err := e.Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	_, err = os.Lstat(e.mark(pod.UID))
	require.ErrorIs(t, err, os.ErrNotExist, "later syncs look at nothing")
	e.unmounted(pod)
	require.Empty(t, e.log.String())
}

// The files get the group of the first pod; a new first pod comes after the last one has ended.
func TestMount_LocalVolumeOfSeveralPods(t *testing.T) {
	e := newLocalEnv(t)
	first, same, other := localPod("uid-1", 0), localPod("uid-2", 0), localPod("uid-3", 1)
	require.Equal(t, os.FileMode(0o660), e.mounted(first))
	e.narrow()
	require.Equal(t, os.FileMode(0o600), e.mounted(same))
	require.Empty(t, e.log.String())
	require.Equal(t, os.FileMode(0o600), e.mounted(other))
	assert.Contains(t, e.log.String(), `level=WARN msg="volume already mounted with another group, so it may not be shareable" pod=default/web podUID=uid-3 volume=pv group=`)
	e.log.Reset()
	e.mounted(other)
	require.Empty(t, e.log.String(), "once")

	e.unmounted(first)
	e.unmounted(other)
	e.restart()
	require.Equal(t, os.FileMode(0o600), e.mounted(localPod("uid-4", 0)), "the second has it")
	e.unmounted(same)
	e.unmounted(localPod("uid-4", 0))
	require.Equal(t, os.FileMode(0o660), e.mounted(localPod("uid-5", 0)))
}

// A pod without an fsGroup has the volume like any other.
func TestMount_LocalVolumeOfAPodWithoutAGroup(t *testing.T) {
	e, without := newLocalEnv(t), localPod("uid-1", -1)
	require.Equal(t, os.FileMode(0o600), e.mounted(without))
	require.Equal(t, os.FileMode(0o600), e.mounted(localPod("uid-2", 0)))
	e.unmounted(localPod("uid-2", 0))
	e.unmounted(without)
	require.Equal(t, os.FileMode(0o660), e.mounted(localPod("uid-2", 0)))
}

// A volume whose mark could not be made is not ready: all is done again.
func TestMount_LocalVolumeAfterACrash(t *testing.T) {
	e, pod := newLocalEnv(t), localPod("uid-1", 0)
	require.NoError(t, os.MkdirAll(e.mark(pod.UID)+"/obstacle", 0o700))
	_, err := e.Mount(t.Context(), pod, nil)
	require.ErrorContains(t, err, "kubernetes.io~local-volume/pv")
	e.narrow()
	require.NoError(t, os.RemoveAll(e.mark(pod.UID)))
	e.restart()
	require.Equal(t, os.FileMode(0o660), e.mounted(pod))
	e.unmounted(pod)
}

// The mark leads to where the volume is now.
func TestMount_LocalVolumeAtAnotherPath(t *testing.T) {
	e, pod := newLocalEnv(t), localPod("uid-1", 0)
	e.mounted(pod)
	e.dir = t.TempDir()
	require.NoError(t, os.WriteFile(e.file(), nil, 0o600))
	e.restart()
	require.Equal(t, os.FileMode(0o660), e.mounted(pod))
	e.unmounted(pod)
}

// On another node the same path may have other data.
func TestMount_NodeAffinityOfLocalVolumes(t *testing.T) {
	dir, nodeLabels := t.TempDir(), map[string]string{corev1.LabelHostname: "edge-1"}
	for name, source := range map[string]corev1.PersistentVolumeSource{
		"local": {Local: &corev1.LocalVolumeSource{Path: dir}}, "hostPath": {HostPath: &corev1.HostPathVolumeSource{Path: dir}},
	} {
		claims := boundClaim(source)
		claims.volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"edge-1"}}},
		}}}}
		m, err := volume.New(volume.Config{Root: t.TempDir(), Claims: claims, NodeLabels: func() map[string]string { return nodeLabels }})
		require.NoError(t, err)
		_, err = m.Mount(t.Context(), claimPod(viaClaim(false)), nil)
		require.NoError(t, err, name)
		nodeLabels = map[string]string{corev1.LabelHostname: "edge-2"}
		_, err = m.Mount(t.Context(), claimPod(viaClaim(false)), nil)
		require.NoError(t, err, "a pod keeps what it has when a label is changed")
		other := claimPod(viaClaim(false))
		other.UID = "uid-2"
		_, err = m.Mount(t.Context(), other, nil)
		require.ErrorContains(t, err, "volume pv is of another node", name)
		_, err = driverManager(t, claims).Mount(t.Context(), claimPod(viaClaim(false)), nil)
		require.NoError(t, err, "labels that are not known")
		nodeLabels = map[string]string{corev1.LabelHostname: "edge-1"}
	}
}

func TestLocal_Usage(t *testing.T) {
	e := newLocalEnv(t)
	pod := claimPod(viaClaim(false))
	e.mounted(pod)
	var usage runtime.FSUsage
	require.Eventually(t, func() bool { // what is not measured at once is there the next time
		usage = e.VolumeUsage(pod.UID)["data"]
		return !usage.At.IsZero()
	}, time.Minute, time.Millisecond)
	assert.WithinDuration(t, time.Now(), usage.At, time.Minute)
	assert.Positive(t, usage.CapacityBytes)
	require.NoError(t, e.Unmount(t.Context(), pod.UID))
	assert.Empty(t, e.VolumeUsage(pod.UID))
}

func ephemeral() corev1.VolumeSource {
	return corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
}
