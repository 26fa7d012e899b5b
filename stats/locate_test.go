package stats_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
)

// fakeNode has pods with their directories, volumes and cgroups.
type fakeNode struct{ pods []*corev1.Pod }

func (n fakeNode) ActivePods() []*corev1.Pod      { return n.pods }
func (fakeNode) PodCgroup(pod *corev1.Pod) string { return "/kubepods/" + string(pod.UID) }
func (fakeNode) WrittenFiles(p *corev1.Pod) []string {
	return []string{"/pods/" + string(p.UID) + "/etc-hosts"}
}

func (fakeNode) LogDir(pod *corev1.Pod) (string, error) {
	if pod.UID == "unsafe" {
		return "/logs", errors.New("invalid path element")
	}
	return "/logs/" + string(pod.UID), nil
}

func (fakeNode) LocalVolumePaths(pod *corev1.Pod) map[string]string {
	paths := map[string]string{}
	for i := range pod.Spec.Volumes {
		paths[pod.Spec.Volumes[i].Name] = "/pods/" + string(pod.UID) + "/" + pod.Spec.Volumes[i].Name
	}
	return paths
}

// EV-7: usage is measured where the pod's own directories, volumes and cgroup are.
func TestLocator(t *testing.T) {
	emptyDir := func(name string, medium corev1.StorageMedium) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}
	}
	a, unsafe := pod("a"), pod("unsafe")
	a.Spec.Volumes = []corev1.Volume{
		emptyDir("disk", ""), emptyDir("memory", corev1.StorageMediumMemory), emptyDir("pages", "HugePages-2Mi"),
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
	}
	node := fakeNode{[]*corev1.Pod{a, unsafe}}
	all := stats.Locator{Pods: node, Cgroups: node, Dirs: node, Volumes: node}
	want := []stats.Pod{
		{
			Pod: a, Cgroup: "/kubepods/a", LogDir: "/logs/a", Files: []string{"/pods/a/etc-hosts"},
			Volumes: map[string]stats.Volume{
				"disk": {Path: "/pods/a/disk"}, "memory": {Path: "/pods/a/memory", Uncounted: true}, "pages": {Path: "/pods/a/pages", Uncounted: true},
				"config": {Path: "/pods/a/config"}, "secret": {Path: "/pods/a/secret", Uncounted: true},
			},
		},
		{Pod: unsafe, Cgroup: "/kubepods/unsafe", Files: []string{"/pods/unsafe/etc-hosts"}, Volumes: map[string]stats.Volume{}},
	}
	assert.Equal(t, want, all.All())
	assert.Empty(t, all.Tracked(), "by default no pod is tracked")

	all.IsTracked = func(pod *corev1.Pod) bool { return pod.UID == "a" }
	want[0].TrackDiskUsage = true
	assert.Equal(t, want, all.All())
	assert.Equal(t, want[:1], all.Tracked())
	assert.Equal(t, []*corev1.Pod{a, unsafe}, node.pods, "the list is the caller's")

	assert.Equal(t, []stats.Pod{{Pod: a}, {Pod: unsafe}}, stats.Locator{Pods: node}.All(), "nothing else is known")
}

// imageFS has the file systems that a runtime reports.
type imageFS func(ctx context.Context) (images, containers []runtime.FSUsage, err error)

func (f imageFS) ImageFS(ctx context.Context) (images, containers []runtime.FSUsage, err error) {
	return f(ctx)
}

func mountedAt(paths ...string) (fs []runtime.FSUsage) {
	for _, path := range paths {
		fs = append(fs, runtime.FSUsage{Mountpoint: path})
	}
	return fs
}

// EV-1: the file systems of images and of writable layers are those that the runtime reports.
func TestProvider_ImageFS(t *testing.T) {
	for name, tc := range map[string]struct {
		images, containers     []runtime.FSUsage
		wantImages, wantLayers string
	}{
		"one for both":      {mountedAt("/images/../images"), nil, "/images", "/images"},
		"one for each":      {mountedAt("/images", "/other"), mountedAt("/layers/", "/other"), "/images", "/layers"},
		"none, not ignored": {nil, mountedAt("/layers"), "", ""},
	} {
		p, err := stats.New(stats.Config{
			Proc: proc(), Cgroups: files(nil), NodeFS: "/node",
			ImageFS: imageFS(func(context.Context) (images, containers []runtime.FSUsage, err error) {
				return tc.images, tc.containers, nil
			}),
			Statfs: func(path string) (runtime.FSUsage, error) {
				return runtime.FSUsage{At: time.Now(), Mountpoint: path}, nil
			},
		})
		require.NoError(t, err)
		u, err := p.NodeUsage(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"/node", tc.wantImages, tc.wantLayers}, []string{u.NodeFS.Mountpoint, u.ImageFS.Mountpoint, u.ContainerFS.Mountpoint}, name)
	}
}
