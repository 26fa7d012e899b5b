package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LocalVolumePaths returns the paths that Mount uses.
func TestManager_LocalVolumePaths(t *testing.T) {
	m, err := New(Config{Root: t.TempDir(), Unprivileged: true})
	require.NoError(t, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: types.UID("u-1")}}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}}},
	}
	pod.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/a"}, {Name: "host", MountPath: "/b"}}}}
	mounted, err := m.Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"scratch": mounted["scratch"].HostPath}, m.LocalVolumePaths(pod), "hostPath volumes are not local")

	pod.Spec.Volumes[0].Name = ".."
	require.Empty(t, m.LocalVolumePaths(pod))
	pod.UID = "../.."
	require.Empty(t, m.LocalVolumePaths(pod))
}
