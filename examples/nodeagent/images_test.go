//go:build linux

package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/containerdtest"
)

// TestImagesOnContainerd has a daemon that finds its disk too full by the flags
// that it was given: it makes room at once, by the file system's count, says so in
// one line, and explains the rest. Killed meanwhile, the next one goes on.
func TestImagesOnContainerd(t *testing.T) {
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		w := newWorld(t, n)
		disk := n.SmallRoot(t, 96<<20)
		images := cri.NewImageServiceClient(n.Dial(t))
		var refs []string
		pull := func() {
			data := make([]byte, 3<<20)
			_, _ = rand.Read(data)
			ref := n.PushBusybox(t, fmt.Sprint("test/app", len(refs)), "1", containerdtest.File{Name: "data", Data: data, Mode: 0o644})
			_, err := images.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
			require.NoError(t, err)
			refs = append(refs, ref)
		}
		for range 8 {
			pull()
		}
		left := func() (names []string) {
			r, err := images.ListImages(t.Context(), &cri.ListImagesRequest{})
			require.NoError(t, err)
			for _, image := range r.GetImages() {
				names = append(names, image.GetRepoTags()...)
			}
			return names
		}
		percent := func() int {
			var s unix.Statfs_t
			require.NoError(t, unix.Statfs(disk, &s))
			return int(100 - s.Bavail*100/s.Blocks)
		}
		n.Busybox = refs[0]
		w.write("web.yaml", w.manifest("web", "1"))
		low := percent() - 25
		w.extra = []string{
			"-eviction-hard", "none", "-image-gc-high-threshold", fmt.Sprint(low + 5), "-image-gc-low-threshold", fmt.Sprint(low),
			"-minimum-image-ttl-duration", "0s", "-maximum-image-ttl-duration", "24h", "-registry-qps", "0", "-max-parallel-image-pulls", "3",
		}
		w.start()
		w.eventually(longRunTime, func() error {
			if slices.ContainsFunc(refs, func(ref string) bool { return !slices.Contains(left(), ref) }) {
				return nil
			}
			return errors.New("nothing is collected")
		})
		w.up("web-node") // a runtime that loses its caller between start and exec reports a failed start
		w.signal(syscall.SIGKILL)
		pull() // however far it got, there is work for the next
		pull()
		w.start()
		w.up("web-node")
		w.eventually(longRunTime, func() error {
			if now := percent(); now > low {
				return fmt.Errorf("%d %% of the disk are in use, wanted %d", now, low)
			}
			return nil
		})
		require.Greater(t, percent(), low-15, "and no more than it takes")
		names := left()
		require.Contains(t, names, refs[0], "a pod runs on it")
		require.Contains(t, names, n.Registry.Addr()+"/test/pause:1", "all pods stand on it, whether the runtime pins it or only tells of it")

		var g garbage
		w.eventually(soon, func() error {
			code, b, err := w.get("/gc?all")
			if err != nil || code != 200 {
				return fmt.Errorf("%d %s: %w", code, b, err)
			}
			return json.Unmarshal(b, &g)
		})
		goes := 0
		for _, im := range g.Images {
			switch {
			case slices.Contains(im.Names, refs[0]):
				require.Equal(t, string(imagegc.ReasonInUse), im.Reason)
			case im.Remove:
				goes++
			}
		}
		require.Equal(t, len(names)-2, goes)
		require.ElementsMatch(t, names, left(), "a dry run does nothing")
		require.NoError(t, w.signal(syscall.SIGTERM))
		require.FileExists(t, filepath.Join(w.root, "images.json"))
		w.summarized(t)
	})
}

// summarized looks for the one line that says what a collection came to, in the
// logs of all the daemons of this test.
func (w *world) summarized(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(w.out.Name())), "*", "agent-*.log"))
	require.NoError(t, err)
	var said strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		said.Write(b)
	}
	lines := regexp.MustCompile(`msg="image garbage collection done" removed=\d+ bytesToFree=\d+ bytesFreed=\d+ duration=\S+`).FindAllString(said.String(), -1)
	t.Logf("%q", lines)
	require.Contains(t, []int{1, 2}, len(lines), "one for each collection that removed something")
	require.NotContains(t, said.String(), "image garbage collection failed")
}

// TestRoomFlagsOnTheEmbeddedRuntime runs the daemon with every flag about room, as
// a user would without a runtime.
func TestRoomFlagsOnTheEmbeddedRuntime(t *testing.T) {
	dir := t.TempDir()
	w := &world{t: t, bin: bin, manifests: filepath.Join(dir, "manifests"), statuses: filepath.Join(dir, "status"), addr: freeAddr(t)}
	require.NoError(t, os.Mkdir(w.manifests, 0o700))
	w.write("web.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: nginx:1}]}\n")
	w.startWith(
		"-manifests", w.manifests, "-root-dir", filepath.Join(dir, "root"), "-pod-logs-dir", filepath.Join(dir, "logs"), "-listen", w.addr,
		"-status-dir", w.statuses, "-node-name", "node", "-cgroup-root", "/sublet-nodeagent-room",
		"-image-gc-high-threshold", "90", "-image-gc-low-threshold", "85", "-minimum-image-ttl-duration", "1m", "-maximum-image-ttl-duration", "24h",
		"-pod-infra-container-image", "pause:3", "-maximum-dead-containers-per-container", "0", "-maximum-dead-containers", "10",
		"-minimum-container-ttl-duration", "1s", "-container-log-max-size", "1Mi", "-container-log-max-files", "3",
		"-max-parallel-image-pulls", "1", "-registry-qps", "1", "-registry-burst", "1",
	)
	w.eventually(soon, func() error { return w.reportedRunning("web-node") })
	var g garbage
	w.eventually(soon, func() error {
		code, b, err := w.get("/gc")
		if err != nil || code != 200 {
			return fmt.Errorf("%d %s: %w", code, b, err)
		}
		return json.Unmarshal(b, &g)
	})
	require.Len(t, g.Images, 1)
	require.False(t, g.Images[0].Remove)
	require.Equal(t, string(imagegc.ReasonInUse), g.Images[0].Reason)
	require.Empty(t, g.Containers)
	require.NoError(t, w.signal(syscall.SIGTERM))
}
