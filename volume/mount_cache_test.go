package volume

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/podspec"
)

const rememberedVolumes = "  - {name: e}\n  - {name: c, configMap: {name: c}}\n"

// Changed and missing content is restored at once, modified content after
// revalidatePeriod.
func TestMount_RevalidatesCachedVolumes(t *testing.T) {
	s, m := &store{}, manager(t, nil)
	synctest.Test(t, func(t *testing.T) {
		s.put(podspec.ConfigMap, "c", map[string]string{"a": "1"})
		p := pod(t, "u", rememberedVolumes)
		first := mount(t, m, p, s)
		e, c := first["e"].HostPath, first["c"].HostPath
		assert.Equal(t, first, mount(t, m, p, s))

		s.put(podspec.ConfigMap, "c", map[string]string{"a": "2"})
		assert.Equal(t, first, mount(t, m, p, s))
		assert.Equal(t, map[string]string{"a": "2 0644"}, tree(t, c))

		require.NoError(t, os.WriteFile(c+"/..data/a", []byte("theirs"), 0o644))
		time.Sleep(revalidatePeriod - time.Second)
		mount(t, m, p, s)
		assert.Equal(t, map[string]string{"a": "theirs 0644"}, tree(t, c), "it was not looked into")
		time.Sleep(time.Second)
		mount(t, m, p, s)
		assert.Equal(t, map[string]string{"a": "2 0644"}, tree(t, c))

		require.NoError(t, os.RemoveAll(filepath.Join(m.cfg.Root, "pods")))
		assert.Equal(t, first, mount(t, m, p, s))
		assert.DirExists(t, e)
		assert.Equal(t, map[string]string{"a": "2 0644"}, tree(t, c))

		require.NoError(t, m.Unmount(t.Context(), "u"))
		assert.Empty(t, m.cache.pods, "a pod that is gone is forgotten")
		assert.Equal(t, first, mount(t, m, p, s))
		assert.DirExists(t, e)
	})
}

// A cached volume is not used for one of another type with the same name.
func TestMount_CacheDistinguishesTypes(t *testing.T) {
	s, m := &store{}, manager(t, nil)
	s.put(podspec.ConfigMap, "c", map[string]string{"a": "1"})
	s.put(podspec.Secret, "c", map[string]string{"a": "1"})
	paths := map[string]bool{}
	for _, v := range []string{"{name: v}", "{name: v, configMap: {name: c}}", "{name: v, secret: {secretName: c}}", "{name: v, configMap: {name: c, defaultMode: 0400}}"} {
		path := mount(t, m, pod(t, "u", "  - "+v+"\n"), s)["v"].HostPath
		paths[path] = true
		if filepath.Base(filepath.Dir(path)) != pluginEmptyDir {
			assert.Len(t, tree(t, path), 1)
		}
	}
	assert.Len(t, paths, 3)
}

// A tmpfs that was unmounted is mounted again.
func TestMount_RemountsUnmountedTmpfs(t *testing.T) {
	m := privileged(t)
	s := &store{}
	s.put(podspec.Secret, "s", map[string]string{"k": "1"})
	p := pod(t, "u", "  - {name: m, emptyDir: {medium: Memory}}\n  - {name: s, secret: {secretName: s}}\n")
	v := mount(t, m, p, s)
	for _, vol := range v {
		require.NoError(t, unix.Unmount(vol.HostPath, 0))
	}
	assert.Equal(t, v, mount(t, m, p, s))
	for _, vol := range v {
		is, _, err := mounts.IsRoot(vol.HostPath)
		require.NoError(t, err)
		assert.True(t, is, vol.HostPath)
	}
	assert.Equal(t, map[string]string{"k": "1 0644"}, tree(t, v["s"].HostPath))
	require.NoError(t, m.Unmount(t.Context(), "u"))
}
