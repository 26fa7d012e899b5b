//go:build linux

package logrotate_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
)

const (
	maxSize  = 10 << 20
	maxFiles = 5
)

// CG-3: a container on containerd that writes 50 MB a second. Every line that is
// kept is there once and in order, and the disk that they take is bounded.
// SUBLET_LOG_SECONDS lets it write for longer; from 10 s on, a write that was held
// up for more than 50 ms is a failure too.
func TestRotator_RotationOnContainerd(t *testing.T) {
	seconds := 2
	if n, err := strconv.Atoi(os.Getenv("SUBLET_LOG_SECONDS")); err == nil {
		seconds = n
	} else if testing.Short() {
		t.Skip("starts containerd")
	}
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		logs := filepath.Join(n.Shared, "logs")
		require.NoError(t, os.Mkdir(logs, 0o755))
		// Memory, so that what is measured is the rotation and not the disk.
		require.NoError(t, unix.Mount("tmpfs", logs, "tmpfs", 0, "size=3g"))
		client, err := cri.New(n.Dial(t), cri.Config{})
		require.NoError(t, err)
		var rotations atomic.Int32
		r, err := logrotate.New(logrotate.Config{
			Runtime: client, LogsDir: logs, MaxSize: maxSize, MaxFiles: maxFiles, MonitorInterval: time.Second,
			Hooks: logrotate.Hooks{Rotated: func(_ string, _ int64, _ time.Duration, err error) {
				if err != nil && strings.Contains(err.Error(), "container is not running") {
					return // it ended between two listings, with a log that is long enough
				}
				assert.NoError(t, err)
				rotations.Add(1)
			}},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		exited := startWriter(t, n, logs, seconds)
		var most int64
		for !exited() {
			most = max(most, used(logs))
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Second) // the last rotation, and what it leaves to pack
		cancel()
		require.NoError(t, <-ended)

		kept := readLog(t, filepath.Join(logs, "default_web_u1", "app"))
		require.NotEmpty(t, kept.report, "the writer's own words")
		var lines, longest, slow int
		_, err = fmt.Sscanf(kept.report, "lines=%d longest=%dus slow=%d", &lines, &longest, &slow)
		require.NoError(t, err, kept.report)
		t.Logf("%s: %d MB in %d s, %d rotations, at most %d MB on disk, kept %d MB in %d files, a write took %v at most, %d more than 50 ms",
			n.Name, lines/1000, seconds, rotations.Load(), most>>20, len(kept.lines)/1000, len(kept.files), time.Duration(longest)*time.Microsecond, slow)
		for i, line := range kept.lines {
			require.Equal(t, kept.lines[0]+i, line, "line %d of the kept ones", i)
		}
		require.Equal(t, lines-1, kept.lines[len(kept.lines)-1], "none is missing at the end")
		assert.LessOrEqual(t, len(kept.files), maxFiles)
		assert.GreaterOrEqual(t, len(kept.lines)*1000, min(lines*1000, (maxFiles-1)*maxSize*9/10), "four full ones are kept") // less what stands before each line
		assert.GreaterOrEqual(t, int(rotations.Load()), lines*1000/(4*maxSize), "files are not much longer than they may be")
		assert.Less(t, most, int64(4*maxFiles*maxSize), "the disk that it takes is bounded")
		if seconds >= 10 { // too short a run, beside other tests, says nothing of this
			assert.Zero(t, slow, "writes held up for more than 50 ms")
		}
	})
}

// startWriter runs a container that writes, and returns what tells its end.
func startWriter(t *testing.T, n *containerdtest.Node, logs string, seconds int) (exited func() bool) {
	bin := filepath.Join(t.TempDir(), "writer")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, "./testdata/writer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	data, err := os.ReadFile(bin)
	require.NoError(t, err)
	image, err := n.Registry.Push("test/writer", "1", nil, []containerdtest.File{{Name: "writer", Data: data, Mode: 0o755}})
	require.NoError(t, err)
	_, err = criv1.NewImageServiceClient(n.Dial(t)).PullImage(t.Context(), &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: image}})
	require.NoError(t, err)

	rt := criv1.NewRuntimeServiceClient(n.Dial(t))
	labels := map[string]string{runtime.LabelOwner: cri.DefaultOwner, runtime.LabelPodUID: "u1", runtime.LabelPodName: "web", runtime.LabelPodNamespace: "default"}
	config := &criv1.PodSandboxConfig{
		Metadata: &criv1.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1"}, Labels: labels,
		LogDirectory: filepath.Join(logs, "default_web_u1"), Linux: &criv1.LinuxPodSandboxConfig{CgroupParent: n.CgroupParent + "/podu1"},
	}
	sb, err := rt.RunPodSandbox(t.Context(), &criv1.RunPodSandboxRequest{Config: config})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(config.LogDirectory, "app"), 0o755))
	c, err := rt.CreateContainer(t.Context(), &criv1.CreateContainerRequest{
		PodSandboxId: sb.GetPodSandboxId(), SandboxConfig: config,
		Config: &criv1.ContainerConfig{
			Metadata: &criv1.ContainerMetadata{Name: "app"}, Image: &criv1.ImageSpec{Image: image}, LogPath: "app/0.log",
			Command: []string{"/writer", "-for", fmt.Sprint(seconds, "s")},
			Labels: map[string]string{
				runtime.LabelOwner: cri.DefaultOwner, runtime.LabelPodUID: "u1", runtime.LabelPodName: "web", runtime.LabelPodNamespace: "default", runtime.LabelContainerName: "app",
			},
		},
	})
	require.NoError(t, err)
	id := &criv1.StartContainerRequest{ContainerId: c.GetContainerId()}
	_, err = rt.StartContainer(t.Context(), id)
	require.NoError(t, err)
	return func() bool {
		r, err := rt.ContainerStatus(t.Context(), &criv1.ContainerStatusRequest{ContainerId: id.GetContainerId()})
		require.NoError(t, err)
		return r.GetStatus().GetState() == criv1.ContainerState_CONTAINER_EXITED
	}
}

func used(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it was rotated away
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil
	})
	return sum
}

// logged is what is left of a log: line numbers, and what was said on the other
// stream.
type logged struct {
	files  []string
	lines  []int
	report string
}

// readLog reads the files of a log, the oldest first. A runtime that reopens a log
// in the middle of a line ends the old file with one part, marked P, and begins
// the new one with the rest; of the very first line the beginning may be gone.
func readLog(t *testing.T, dir string) (l logged) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		l.files = append(l.files, e.Name())
	}
	slices.SortFunc(l.files, func(a, b string) int {
		if a == "0.log" || b == "0.log" {
			return strings.Compare(b, a) // the current one is the newest
		}
		return strings.Compare(a, b)
	})
	begun := ""
	for _, name := range l.files {
		f, err := os.Open(filepath.Join(dir, name))
		require.NoError(t, err)
		var in io.Reader = f
		if strings.HasSuffix(name, ".gz") {
			in, err = gzip.NewReader(f)
			require.NoError(t, err)
		}
		scan := bufio.NewScanner(in)
		for scan.Scan() {
			part := strings.SplitN(scan.Text(), " ", 4) // time, stream, F for the end of a line, text
			require.Len(t, part, 4, "%s: %q", name, scan.Text())
			switch {
			case part[1] == "stderr":
				l.report = part[3]
			case part[2] == "P":
				begun += part[3]
			default:
				text := begun + part[3]
				begun = ""
				if len(text) < 999 && len(l.lines) == 0 {
					continue
				}
				require.Len(t, text, 999, name)
				n, err := strconv.Atoi(strings.TrimSpace(text))
				require.NoError(t, err)
				l.lines = append(l.lines, n)
			}
		}
		require.NoError(t, scan.Err(), name)
		require.NoError(t, f.Close())
	}
	return l
}
