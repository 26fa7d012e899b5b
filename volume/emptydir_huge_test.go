package volume

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/internal/hugepages"
	"github.com/sublet-dev/agent/internal/mounts"
)

// hugePod returns a pod with an emptyDir in huge pages, of which it requests those of two MiB.
func hugePod(t *testing.T, emptyDir string) *corev1.Pod {
	t.Helper()
	p := pod(t, "uid-1", "  - {name: pages, emptyDir: "+emptyDir+"}\n")
	amount := resource.MustParse("4Mi")
	p.Spec.Containers[0].Resources.Requests["hugepages-2Mi"], p.Spec.Containers[0].Resources.Limits["hugepages-2Mi"] = amount, amount
	return p
}

// notingMounter is a mounter that notes how a hugetlbfs was to be mounted, and mounts nothing.
type notingMounter struct {
	noMounts
	options []string
	err     error
}

func (*notingMounter) canMount() bool { return true }
func (n *notingMounter) hugetlbfs(_ string, o hugetlbfsOptions) error {
	n.options = append(n.options, o.options())
	return n.err
}

func TestEmptyDir_HugePageOptions(t *testing.T) {
	for emptyDir, want := range map[string]string{
		"{medium: HugePages}":                    "pagesize=2097152,mode=1777",
		"{medium: HugePages-2Mi}":                "pagesize=2097152,mode=1777",
		"{medium: HugePages, sizeLimit: 3Mi}":    "pagesize=2097152,mode=1777,size=3145728",
		"{medium: HugePages, sizeLimit: 0}":      "pagesize=2097152,mode=1777",
		"{medium: HugePages-1Gi}":                "medium HugePages-1Gi: no container requests hugepages-1Gi",
		"{medium: HugePages-2Mi, sizeLimit: 2M}": "pagesize=2097152,mode=1777,size=2000000",
	} {
		m, n := manager(t, nil), &notingMounter{}
		m.mount = n
		_, err := m.Mount(t.Context(), hugePod(t, emptyDir), nil)
		if err != nil {
			n.options = append(n.options, err.Error())
		}
		require.Len(t, n.options, 1)
		assert.Contains(t, n.options[0], want)
	}
	m, n := manager(t, nil), &notingMounter{}
	m.mount = n
	p := hugePod(t, "{medium: HugePages}")
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(77))}
	_, err := m.Mount(t.Context(), p, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"pagesize=2097152,mode=1000,gid=77"}, n.options)

	m.mount = &notingMounter{err: unix.EBUSY}
	_, err = m.Mount(t.Context(), p, nil)
	require.ErrorIs(t, err, unix.EBUSY, "it is missing, whatever the cache has")
	_, err = manager(t, nil).Mount(t.Context(), p, nil)
	require.ErrorIs(t, err, ErrPrivilege)
	require.ErrorContains(t, err, "emptyDir with medium HugePages")
}

func TestEmptyDir_HugePages(t *testing.T) {
	m := privileged(t)
	if !slices.Contains(hugepages.Sizes(os.DirFS("/")), int64(2<<20)) {
		t.Skip("needs a kernel with huge pages of two MiB")
	}
	const shared = fs.ModeDir | fs.ModeSticky | 0o777
	for name, tc := range map[string]struct {
		group *int64
		want  fs.FileMode
	}{
		"without a group": {nil, shared},
		"with a group":    {new(int64(77)), shared | fs.ModeSetgid},
	} {
		t.Run(name, func(t *testing.T) {
			p := hugePod(t, "{medium: HugePages, sizeLimit: 5Mi}")
			p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: tc.group}
			mount := func(m *Manager) string {
				t.Helper()
				mounted, err := m.Mount(t.Context(), p, nil)
				require.NoError(t, err)
				return mounted["pages"].HostPath
			}
			path := mount(m)
			is := func(want fs.FileMode) {
				t.Helper()
				table, err := mounts.Below(path)
				require.NoError(t, err)
				require.Len(t, table, 1)
				require.Equal(t, "hugetlbfs", table[0].FSType)
				info, err := os.Stat(path)
				require.NoError(t, err)
				require.Equal(t, want, info.Mode())
			}
			is(tc.want)
			var st unix.Statfs_t
			require.NoError(t, unix.Statfs(path, &st))
			require.EqualValues(t, 2<<20, st.Bsize)
			require.EqualValues(t, 2, st.Blocks)
			require.NoError(t, os.Mkdir(filepath.Join(path, "sub"), 0o755))

			// Another process leaves the volume as it is, but for what is missing of it.
			next := func() *Manager { return privileged(t) }()
			next.cfg.Root = m.cfg.Root
			require.Equal(t, path, mount(next))
			require.DirExists(t, filepath.Join(path, "sub"))
			is(tc.want)
			require.NoError(t, os.Chmod(path, 0o700))
			mount(m)
			is(fs.ModeDir | 0o700)
			if tc.group != nil {
				require.NoError(t, os.Chmod(path, fs.ModeSticky))
				next.cache.forget(p.UID)
				mount(next)
				is(tc.want)
				var sub unix.Stat_t
				require.NoError(t, unix.Stat(path+"/sub", &sub))
				require.EqualValues(t, 77, sub.Gid)
			}
			v := mountedVolume{path: path, plugin: pluginEmptyDir, medium: corev1.StorageMediumHugePages}
			require.True(t, v.exists(corev1.StorageMediumHugePages))
			require.NoError(t, m.Unmount(context.Background(), p.UID))
			require.NoDirExists(t, path)
			require.False(t, v.exists(corev1.StorageMediumHugePages))
		})
	}

	err := osMounter{}.hugetlbfs(t.TempDir(), hugetlbfsOptions{pageSize: 3 << 20, mode: 0o1777})
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "no huge pages of 3145728 bytes")
}
