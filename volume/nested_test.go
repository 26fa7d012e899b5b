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
	p.Spec.Containers[0].VolumeMounts[len(p.Spec.Containers[0].VolumeMounts)-1].SubPath = "file"
	mountedAt(p, "e", "/v/..data")
	mountedAt(p, "e", "/v/..x/y")
	dir := mount(t, m, p, s)["v"].HostPath
	assert.DirExists(t, dir+"/..x/y")
	assert.Equal(t, map[string]string{"a": "1 0644", "file": "1 0644"}, tree(t, dir), "a file is mounted on a file")
	before, err := os.Stat(dir + "/outer")
	require.NoError(t, err)

	s.put(podspec.ConfigMap, "c", map[string]string{"a": "2", "outer": "2"})
	mountedAt(p, "e", "/v/later")
	mount(t, m, p, s)
	after, err := os.Lstat(dir + "/outer")
	require.NoError(t, err)
	assert.True(t, os.SameFile(before, after), "the directory is in use")
	assert.DirExists(t, dir+"/..x/y")
	assert.DirExists(t, dir+"/later")
	data, err := os.ReadFile(dir + "/a")
	require.NoError(t, err)
	assert.Equal(t, "2", string(data))

	mountedAt(p, "e", "/v/debug")
	mount(t, m, p, s)
	assert.DirExists(t, dir+"/debug", "the content is as it was")
}

// A directory cannot be mounted on a file, nor made in the content, which is replaced.
func TestMount_DirectoriesForNestedVolumesHideContent(t *testing.T) {
	s, m := &store{}, manager(t, nil)
	s.put(podspec.ConfigMap, "c", map[string]string{"a": "1", "file": "1", "x": "1"})
	p := pod(t, "u", "  - {name: v, configMap: {name: c, items: [{key: a, path: a}, {key: file, path: file}, {key: x, path: d/x}, {key: x, path: e/x}]}}\n  - {name: e}\n")
	mountedAt(p, "e", "/v/file")
	mountedAt(p, "e", "/v/d")
	mountedAt(p, "e", "/v/e/f")
	for _, content := range []string{"1", "2"} {
		s.put(podspec.ConfigMap, "c", map[string]string{"a": content, "file": content, "x": content})
		dir := mount(t, m, p, s)["v"].HostPath
		for _, name := range []string{"file", "d", "e", "e/f"} {
			info, err := os.Lstat(filepath.Join(dir, name))
			require.NoError(t, err)
			assert.True(t, info.IsDir(), name)
		}
		data, err := os.ReadFile(dir + "/a")
		require.NoError(t, err)
		assert.Equal(t, content, string(data))
	}
}

// A debug container has a mount where a file was that is not in the content any more.
func TestMount_DirectoryForNestedVolumeReplacesFile(t *testing.T) {
	s, m := &store{}, manager(t, nil)
	s.put(podspec.ConfigMap, "c", map[string]string{"a": "1", "d": "1"})
	p := pod(t, "u", "  - {name: v, configMap: {name: c}}\n  - {name: e}\n")
	dir := mount(t, m, p, s)["v"].HostPath
	mountedAt(p, "e", "/v/d/e")
	mount(t, m, p, s)
	assert.Equal(t, map[string]string{"a": "1 0644", "d": "1 0644"}, tree(t, dir), "running containers have it")
	s.put(podspec.ConfigMap, "c", map[string]string{"a": "2"})
	mount(t, m, p, s)
	assert.DirExists(t, dir+"/d/e")
}

func TestNestedMounts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		mounts []corev1.VolumeMount
		want   []nestedMount
	}{
		{"none", []corev1.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "e", MountPath: "/volume"}}, nil},
		{"the volume itself", []corev1.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "v", MountPath: "/v/again"}}, []nestedMount{{path: "again"}}},
		{"a part of it", []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: "a"}, {Name: "e", MountPath: "/v/e"}}, nil},
		{"at the root", []corev1.VolumeMount{{Name: "v", MountPath: "/"}, {Name: "e", MountPath: "/e"}}, []nestedMount{{path: "e"}}},
		{"names that begin alike", []corev1.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "e", MountPath: "/v/a"}, {Name: "f", MountPath: "/v/a-b"}, {Name: "g", MountPath: "/v/a/b"}}, []nestedMount{{path: "a"}, {path: "a-b"}}},
		{"names of the content", []corev1.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "e", MountPath: "/v/..data/a"}, {Name: "e", MountPath: "/v/..data_tmp"}, {Name: "e", MountPath: "/v/..2026_01_01_00_00_00.0"}}, nil},
		{"names like those", []corev1.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "e", MountPath: "/v/..data2"}, {Name: "e", MountPath: "/v/..x/y"}, {Name: "e", MountPath: "/v/.2"}}, []nestedMount{{path: "..data2"}, {path: "..x/y"}, {path: ".2"}}},
		{"what may be files", []corev1.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "e", MountPath: "/v/a", SubPath: "s"}, {Name: "e", MountPath: "/v/b", SubPathExpr: "$(s)"}, {Name: "h", MountPath: "/v/c"}}, []nestedMount{{"a", true}, {"b", true}, {"c", true}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &corev1.Pod{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{VolumeMounts: tt.mounts}},
				Volumes:    []corev1.Volume{{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}}},
			}}
			assert.Equal(t, tt.want, nestedMounts(p, "v"))
		})
	}
}
