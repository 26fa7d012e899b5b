package imagegc_test

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
)

// IG-1, IG-3: containerd with a small file system of its own and twelve images.
func TestOnContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts containerd")
	}
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		disk := filepath.Join(filepath.Dir(n.Socket), "root")
		n.StopDaemon(t, syscall.SIGTERM)
		require.NoError(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=400m"))
		n.StartDaemon(t)
		client, err := cri.New(n.Dial(t), cri.Config{})
		require.NoError(t, err)
		images := criv1.NewImageServiceClient(n.Dial(t))

		// Ages come from a former collector's file.
		cfg := imagegc.Config{Images: client, File: filepath.Join(t.TempDir(), "ages"), Policy: imagegc.Policy{MinAge: -1, HighPercent: 101}}
		former := collector(t, cfg)
		var refs []string
		for i := range 12 {
			ref := n.PushBusybox(t, fmt.Sprint("test/app", i), "1", containerdtest.File{Name: "data", Data: random(5 << 20), Mode: 0o644})
			_, err := images.PullImage(t.Context(), &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: ref}})
			require.NoError(t, err)
			refs = append(refs, ref)
			_, err = former.Collect(t.Context())
			require.NoError(t, err)
			time.Sleep(5 * time.Millisecond)
		}
		run(t, n, refs[0])

		full := used(t, disk)
		cfg.Policy.HighPercent, cfg.Policy.LowPercent = full-1, full-12
		cfg.Keep = []string{refs[2], "test/pause"}
		var removed []string
		cfg.Hooks.Removed = func(image runtime.Image, _ imagegc.Reason, _ time.Duration, err error) {
			require.NoError(t, err)
			removed = append(removed, name(image))
		}
		c := collector(t, cfg)
		require.NoError(t, c.Lease(t.Context(), "pod", []string{refs[1]}))
		result, err := c.Collect(t.Context())
		require.NoError(t, err)
		t.Logf("%s: %d %% full, wanted %d, freed %d, now %d %%, removed %v", n.Name, full, result.Wanted, result.Freed, used(t, disk), removed)
		require.NotEmpty(t, removed)
		want := refs[3:]
		for _, got := range removed {
			if strings.Contains(got, "pause") { // pulled by the daemon before all others, and again when needed
				continue
			}
			require.Equal(t, want[0], got, "the least recently used first")
			want = want[1:]
		}
		assert.LessOrEqual(t, used(t, disk), full-11, "down to the low threshold")
		assert.Greater(t, used(t, disk), full-12-5, "and not by another image further")
		left, err := client.Images(t.Context())
		require.NoError(t, err)
		names := map[string]bool{}
		for _, image := range left {
			names[name(image)] = true
		}
		for _, ref := range refs[:3] {
			assert.True(t, names[ref], "in use, leased or kept: %s", ref)
		}
	})
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func name(image runtime.Image) string {
	if len(image.Tags) == 0 {
		return image.ID
	}
	return image.Tags[0]
}

func used(t *testing.T, path string) int {
	t.Helper()
	var s unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &s))
	return int(100 - s.Bavail*100/s.Blocks)
}

// run makes a container of an image: it needs not even be started.
func run(t *testing.T, n *containerdtest.Node, image string) {
	t.Helper()
	rt := criv1.NewRuntimeServiceClient(n.Dial(t))
	config := &criv1.PodSandboxConfig{
		Metadata: &criv1.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "u"},
		Labels:   map[string]string{runtime.LabelPodUID: "u", runtime.LabelPodName: "p", runtime.LabelPodNamespace: "default"},
		Linux:    &criv1.LinuxPodSandboxConfig{CgroupParent: n.CgroupParent + "/podu"},
	}
	sb, err := rt.RunPodSandbox(t.Context(), &criv1.RunPodSandboxRequest{Config: config})
	require.NoError(t, err)
	_, err = rt.CreateContainer(t.Context(), &criv1.CreateContainerRequest{
		PodSandboxId: sb.GetPodSandboxId(), SandboxConfig: config,
		Config: &criv1.ContainerConfig{
			Metadata: &criv1.ContainerMetadata{Name: "a"}, Image: &criv1.ImageSpec{Image: image},
			Labels: map[string]string{
				runtime.LabelPodUID: "u", runtime.LabelPodName: "p", runtime.LabelPodNamespace: "default", runtime.LabelContainerName: "a",
			},
		},
	})
	require.NoError(t, err)
}
