//go:build linux

package imagegc_test

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
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

const mb = 1 << 20

// IG-1, IG-3, IG-5: containerd with a small file system of its own and twelve
// images of known sizes, six of which share a layer that is bigger than what they
// have of their own. By their sizes few would do; the file system says how many.
func TestCollector_OnContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts containerd")
	}
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		d := newDisk(t, n)
		previous := collector(t, imagegc.Config{Images: d.client, RecordsFile: d.ages, Policy: imagegc.Policy{MinAge: -1, HighThresholdPercent: 101}})
		d.fill(t, previous)

		full := 100 - int(d.available(t)*100/d.capacity)
		low := full - 15
		target := d.capacity * uint64(100-low) / 100
		var removed []string
		var readings []uint64 // right after each removal
		cfg := imagegc.Config{
			Images: d.client, RecordsFile: d.ages, SandboxImage: d.client.SandboxImage, Policy: imagegc.Policy{MinAge: -1, HighThresholdPercent: full - 1, LowThresholdPercent: low},
			Hooks: imagegc.Hooks{Removed: func(image runtime.Image, reason imagegc.Reason, _ time.Duration, err error) {
				assert.NoError(t, err)
				assert.NotEmpty(t, reason)
				removed, readings = append(removed, name(image)), append(readings, d.available(t))
			}},
		}
		c := collector(t, cfg)
		require.NoError(t, c.Lease(t.Context(), "pod", d.leased))
		planned := d.dryRun(t, c)
		require.Empty(t, removed)

		before := d.available(t)
		result, err := c.Collect(t.Context())
		require.NoError(t, err)
		end := d.available(t)
		t.Logf("%s: %d %% full, wanted %d, freed %d, now %d %%, removed %d, of which %d by their sizes, in %v",
			n.Name, full, result.BytesToFree, result.BytesFreed, 100-end*100/d.capacity, len(removed), planned, result.Duration.Round(time.Millisecond))
		require.Equal(t, d.order[:len(removed)], removed, "the least recently used first, not the first pulled")
		assert.Greater(t, len(removed), planned, "sizes that share layers promise too much")
		assert.GreaterOrEqual(t, end, target, "down to the low threshold by the file system's own count")
		for i, at := range readings[:len(readings)-1] {
			assert.Less(t, at, target, "it was enough after %d", i+1)
		}
		assert.Less(t, end-target, uint64(7*mb), "not by another image further")
		assert.InDelta(t, end-before, result.BytesFreed, mb/2)

		before = d.available(t)
		result, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		assert.InDelta(t, d.available(t)-before, result.BytesFreed, mb/2, "DeleteUnused tells what the file system gained")
		assert.Equal(t, d.order, removed, "all others, in the same order")
		assert.Equal(t, d.stays, d.names(t), "in use, leased, pinned or kept")

		c.Release("pod")
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		assert.Subset(t, removed, d.leased, "the lease is over")
		assert.Equal(t, d.stays[1:], d.names(t), "a container is made from the other")
	})
}

// disk is what a runtime stores its images on.
type disk struct {
	node     *containerdtest.Node
	client   *cri.Client
	path     string
	capacity uint64
	ages     string

	order  []string // those that may go, the least recently used first
	stays  []string // sorted; of a container, leased, of sandboxes
	leased []string
	unpins int // images of sandboxes that the runtime does not pin by itself
}

func newDisk(t *testing.T, n *containerdtest.Node) *disk {
	const size = 128 * mb
	d := &disk{node: n, path: n.SmallRoot(t, size), capacity: size, ages: filepath.Join(t.TempDir(), "ages")}
	var err error
	d.client, err = cri.New(n.Dial(t), cri.Config{})
	require.NoError(t, err)
	return d
}

// fill pulls all images, and uses them in another order.
func (d *disk) fill(t *testing.T, previous *imagegc.Collector) {
	shared := random("shared", 6*mb)
	refs, own := make([]string, 12), make([]int, 12)
	for i := range refs {
		layers := [][]containerdtest.File{shared, random("own", mb)}
		own[i] = 7 * mb
		if i%2 == 1 {
			layers, own[i] = [][]containerdtest.File{random("own", 3*mb)}, 3*mb
		}
		refs[i] = d.node.PushLayers(t, fmt.Sprint("test/app", i), "1", layers...)
		pull(t, d.node, refs[i])
	}
	run(t, d.node, refs[1])
	d.leased = refs[:1] // it holds on to the shared layer
	d.stays = []string{refs[0], refs[1], d.node.Registry.Addr() + "/test/pause:1"}
	slices.Sort(d.stays)
	d.order = []string{refs[10], refs[2], refs[8], refs[4], refs[6], refs[3], refs[11], refs[9], refs[5], refs[7]}

	images, err := d.client.Images(t.Context())
	require.NoError(t, err)
	require.Len(t, images, 13)
	base := uint64(0)
	for _, image := range images {
		at := slices.Index(refs, name(image))
		if at < 0 {
			if !image.Pinned {
				d.unpins++
			}
			require.Equal(t, strings.HasPrefix(d.node.Name, "containerd-2"), image.Pinned, "containerd 2 pins the image of its sandboxes")
			continue
		}
		if base == 0 {
			base = image.Bytes - uint64(own[at])
		}
		require.InDelta(t, base+uint64(own[at]), image.Bytes, mb/16, "the size of %s", refs[at])
	}
	for _, ref := range append([]string{refs[0], refs[1]}, d.order...) {
		time.Sleep(2 * time.Millisecond)
		require.NoError(t, previous.Lease(t.Context(), "user", []string{ref}))
		previous.Release("user")
		_, err := previous.Collect(t.Context())
		require.NoError(t, err)
	}
}

// dryRun holds the explanation of a collection against what is known, and returns
// how many images would go by their sizes.
func (d *disk) dryRun(t *testing.T, c *imagegc.Collector) (planned int) {
	choices, err := c.Explain(t.Context(), false)
	require.NoError(t, err)
	var order []string
	reasons := map[imagegc.Reason]int{}
	for _, ch := range choices {
		if ch.Remove {
			planned++
		}
		if ch.Reason == imagegc.ReasonDiskUsage || ch.Reason == imagegc.ReasonNotNeeded {
			order = append(order, name(ch.Image))
			continue
		}
		reasons[ch.Reason]++
	}
	assert.Equal(t, d.order, order)
	want := map[imagegc.Reason]int{imagegc.ReasonInUse: 1, imagegc.ReasonLeased: 1, imagegc.ReasonPinned: 1}
	if d.unpins > 0 { // then it is asked which one that is
		want = map[imagegc.Reason]int{imagegc.ReasonInUse: 1, imagegc.ReasonLeased: 1, imagegc.ReasonConfigured: 1}
	}
	assert.Equal(t, want, reasons)
	return planned
}

func (d *disk) available(t *testing.T) uint64 {
	var s unix.Statfs_t
	require.NoError(t, unix.Statfs(d.path, &s))
	return s.Bavail * uint64(s.Bsize)
}

func (d *disk) names(t *testing.T) (names []string) {
	images, err := d.client.Images(t.Context())
	require.NoError(t, err)
	for _, image := range images {
		names = append(names, name(image))
	}
	slices.Sort(names)
	return names
}

// random is a layer that no compression makes smaller.
func random(file string, n int) []containerdtest.File {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return []containerdtest.File{{Name: file, Data: b, Mode: 0o644}}
}

func name(image runtime.Image) string {
	if len(image.Tags) == 0 {
		return image.ID
	}
	return image.Tags[0]
}

func pull(t *testing.T, n *containerdtest.Node, ref string) {
	_, err := criv1.NewImageServiceClient(n.Dial(t)).PullImage(t.Context(), &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: ref}})
	require.NoError(t, err)
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
