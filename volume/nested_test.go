package volume

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// mountedAt mounts a volume of the pod in its container at a further path.
func mountedAt(p *corev1.Pod, name, at string) {
	c := &p.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at})
}

// A volume that containers cannot write to has the directories on which they mount others.
func TestMount_MakesDirectoriesForNestedVolumes(t *testing.T) {
	s, m := &store{}, manager(t, nil)
	s.put(podspec.ConfigMap, "c", map[string]string{"a": "1"})
	s.put(podspec.Secret, "s", map[string]string{"k": "1"})
	for _, volume := range []string{"configMap: {name: c}", "secret: {secretName: s}", "projected: {sources: [{configMap: {name: c}}]}", "downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}"} {
		p := pod(t, "u", "  - {name: v, "+volume+"}\n  - {name: e}\n")
		mountedAt(p, "e", "/v/outer")
		mountedAt(p, "e", "v/outer/inner/")
		mountedAt(p, "e", "/v/deep/../deep/est")
		mountedAt(p, "e", "/vast")
		dir := mount(t, m, p, s)["v"].HostPath
		for _, name := range []string{"outer", "deep", "deep/est"} {
			info, err := os.Stat(filepath.Join(dir, name))
			require.NoError(t, err, volume)
			assert.Equal(t, os.FileMode(0o755), info.Mode().Perm(), "%s %s", volume, name)
		}
		assert.NoDirExists(t, dir+"/outer/inner", "it is in the other volume")
		require.NoError(t, m.Unmount(t.Context(), "u"))
	}
}

// The mount of a container survives a change of the content, and a debug container finds its own.
func TestMount_KeepsDirectoriesForNestedVolumes(t *testing.T) {
	s, m := &store{}, manager(t, nil)
	s.put(podspec.ConfigMap, "c", map[string]string{"a": "1", "file": "1"})
	p := pod(t, "u", "  - {name: v, configMap: {name: c}}\n  - {name: e}\n")
	mountedAt(p, "e", "/v/outer")
	mountedAt(p, "e", "/v/file")
	mountedAt(p, "e", "/v/..data")
	dir := mount(t, m, p, s)["v"].HostPath
	assert.Equal(t, map[string]string{"a": "1 0644", "file": "1 0644"}, tree(t, dir), "what is there is mounted on")
	before, err := os.Stat(dir + "/outer")
	require.NoError(t, err)

	s.put(podspec.ConfigMap, "c", map[string]string{"a": "2", "outer": "2"})
	mountedAt(p, "e", "/v/later")
	mount(t, m, p, s)
	after, err := os.Lstat(dir + "/outer")
	require.NoError(t, err)
	assert.True(t, os.SameFile(before, after), "the directory is in use")
	assert.DirExists(t, dir+"/later")
	data, err := os.ReadFile(dir + "/a")
	require.NoError(t, err)
	assert.Equal(t, "2", string(data))

	mountedAt(p, "e", "/v/debug")
	mount(t, m, p, s)
	assert.DirExists(t, dir+"/debug", "the content is as it was")
}

func TestNestedDirs(t *testing.T) {
	for _, tt := range []struct {
		name   string
		mounts []corev1.VolumeMount
		want   []string
	}{
		{"none", []corev1.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "e", MountPath: "/volume"}}, nil},
		{"the volume itself", []corev1.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "v", MountPath: "/v/again"}}, []string{"again"}},
		{"a part of it", []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: "a"}, {Name: "e", MountPath: "/v/e"}}, nil},
		{"at the root", []corev1.VolumeMount{{Name: "v", MountPath: "/"}, {Name: "e", MountPath: "/e"}}, []string{"e"}},
		{"names that begin alike", []corev1.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "e", MountPath: "/v/a"}, {Name: "f", MountPath: "/v/a-b"}, {Name: "g", MountPath: "/v/a/b"}}, []string{"a", "a-b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{VolumeMounts: tt.mounts}}}}
			assert.Equal(t, tt.want, nestedDirs(p, "v"))
		})
	}
}
