package stats

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/diskusage"
	"github.com/sublet-dev/agent/runtime"
)

// podOf returns a pod with a volume, a log and other files, each of some bytes.
func podOf(t *testing.T, uid types.UID) Pod {
	t.Helper()
	dir := t.TempDir()
	for name, size := range map[string]int{"vol/a": 10_000, "mem/b": 20_000, "logs/main/0.log": 30_000, "etc-hosts": 40_000, "containers/main/0": 50_000} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600))
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	return Pod{
		Pod:    &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Name: string(uid)}},
		LogDir: at("logs"), Files: []string{at("etc-hosts"), at("containers"), at("none")},
		Volumes: map[string]Volume{"vol": {Path: at("vol")}, "mem": {Path: at("mem"), Uncounted: true}},
	}
}

func bytesIn(t *testing.T, u runtime.DiskUsage, least int) {
	t.Helper()
	assert.False(t, u.At.IsZero())
	assert.GreaterOrEqual(t, u.Bytes, uint64(least))
	assert.Less(t, u.Bytes, uint64(least)+30_000)
}

// All files of a pod are counted, those in memory separately.
func TestPodCount(t *testing.T) {
	pod := podOf(t, "a")
	c := newPodCount(&pod)
	require.True(t, c.run(t.Context()))
	require.NoError(t, c.err())
	bytesIn(t, c.disk.files, 90_000)
	bytesIn(t, c.disk.logs["main"], 30_000)
	bytesIn(t, c.disk.volumes["vol"].DiskUsage, 10_000)
	bytesIn(t, c.disk.volumes["mem"].DiskUsage, 20_000)
	assert.True(t, c.disk.volumes["mem"].Uncounted)
	assert.False(t, c.disk.volumes["vol"].Uncounted)
	assert.False(t, c.disk.at.IsZero())
	assert.False(t, c.disk.files.Partial)
}

// A suspended count has a result so far and can be continued.
func TestPodCount_CanBeSuspended(t *testing.T) {
	pod := podOf(t, "a")
	c := newPodCount(&pod)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for len(c.parts) > 3 { // the files are done, not the logs
		ctx, stop := context.WithCancel(t.Context())
		if c.walk != nil {
			c.walk.Step()
		}
		stop()
		if c.run(ctx); c.walk == nil || c.walk.Done() {
			break
		}
	}
	for !c.disk.files.At.IsZero() && c.walk == nil && !c.run(over) {
	}
	so := c.soFar()
	assert.NotContains(t, so.volumes, "vol", "not begun")
	assert.True(t, so.files.Partial || so.logs["main"].Partial, "what is being counted is reported as such")
	assert.Empty(t, c.disk.volumes, "and is not taken for the end")
	require.True(t, c.run(t.Context()))
	bytesIn(t, c.disk.files, 90_000)
	bytesIn(t, c.disk.logs["main"], 30_000)
	assert.False(t, c.disk.logs["main"].Partial)
	c.close()
}

// The result is that of the last count, or of one under way that has found more.
func TestPodDisk_WithANewerCount(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	use := func(s int, bytes, inodes uint64, partial bool) runtime.DiskUsage {
		return runtime.DiskUsage{At: at(s), Bytes: bytes, Inodes: inodes, Partial: partial}
	}
	none := runtime.DiskUsage{}
	for name, tc := range map[string]struct {
		known, newer runtime.DiskUsage
		since        int
		want         runtime.DiskUsage
	}{
		"only the last one":                     {use(10, 5, 1, false), none, 0, use(10, 5, 1, false)},
		"only one under way":                    {none, use(20, 3, 1, true), 0, use(20, 3, 1, true)},
		"it has found less":                     {use(10, 5, 1, false), use(20, 5, 1, true), 0, use(10, 5, 1, false)},
		"it has found more bytes":               {use(10, 5, 1, false), use(20, 6, 1, true), 0, use(20, 6, 1, false)},
		"it has found more files":               {use(10, 5, 1, false), use(20, 5, 2, true), 0, use(20, 5, 2, false)},
		"the last one is too old":               {use(10, 5, 1, false), use(20, 3, 1, true), 11, use(20, 3, 1, true)},
		"the last one is just as new as wanted": {use(10, 5, 1, false), use(20, 3, 1, true), 10, use(10, 5, 1, false)},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, better(tc.known, tc.newer, at(tc.since)))
			disk := func(u runtime.DiskUsage) podDisk {
				if u.At.IsZero() {
					return podDisk{}
				}
				return podDisk{
					at: u.At, files: u, logs: map[string]runtime.DiskUsage{"c": u},
					volumes: map[string]runtime.VolumeUsage{"v": {DiskUsage: u, Uncounted: true}},
				}
			}
			got := disk(tc.known).with(disk(tc.newer), at(tc.since))
			assert.Equal(t, tc.want, got.files)
			assert.Equal(t, tc.want, got.logs["c"])
			assert.Equal(t, runtime.VolumeUsage{DiskUsage: tc.want, Uncounted: true}, got.volumes["v"])
			assert.Equal(t, disk(tc.known).at, got.at)
		})
	}
}

func newTestProvider(t *testing.T, cfg Config) *Provider {
	t.Helper()
	if cfg.Proc == nil {
		cfg.Proc = fstest.MapFS{"meminfo": {Data: []byte("MemTotal: 1000 kB\nMemFree: 400 kB\n")}}
	}
	if cfg.Cgroups == nil {
		cfg.Cgroups = fstest.MapFS{}
	}
	p, err := New(cfg)
	require.NoError(t, err)
	return p
}

// A count that exceeds its slice is reported, kept and continued by the next call. The
// number of suspended counts is limited, because they have directories open.
func TestProvider_ContinuesCounts(t *testing.T) {
	var pods []Pod
	for i := range countsKept + 1 {
		pods = append(pods, podOf(t, types.UID(fmt.Sprint("p", i))))
	}
	p := newTestProvider(t, Config{Pods: func() []Pod { return pods }})
	for i := range pods {
		c := newPodCount(&pods[i])
		c.walk = diskusage.New(pods[i].Volumes["vol"].Path)
		c.parts = []part{{kind: partVolume, name: "vol", path: pods[i].Volumes["vol"].Path}, {kind: partVolume, name: "mem", path: pods[i].Volumes["mem"].Path}}
		c.walk.Step()
		p.keepCount(pods[i].Pod.UID, c, false)
	}
	assert.Len(t, p.counts, countsKept)
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	for i := range u.Pods {
		bytesIn(t, u.Pods[i].Volumes["vol"].DiskUsage, 10_000)
		assert.True(t, u.Pods[i].Volumes["vol"].Partial)
		assert.NotContains(t, u.Pods[i].Volumes, "mem")
		s := Summarize("n", time.Time{}, &u, nil)
		assert.Empty(t, s.Pods[i].VolumeStats, "what is partial is not reported to others")
		assert.Nil(t, s.Pods[i].EphemeralStorage)
	}
	assert.True(t, p.countSome(t.Context(), &pods[0], time.Now()))
	assert.Len(t, p.counts, countsKept-1)
	bytesIn(t, p.disks["p0"].volumes["mem"].DiskUsage, 20_000)
	assert.Zero(t, p.disks["p0"].files, "it was gone on with and not begun anew")
	assert.NotContains(t, p.partial, types.UID("p0"))

	// The count of a removed pod is dropped, and all counts at the end of Run.
	pods = pods[2:]
	p.dropCounts()
	assert.Len(t, p.counts, countsKept-2)
	assert.NotContains(t, p.counts, types.UID("p1"))
	p.stopCounts()
	assert.Empty(t, p.counts)
	assert.Empty(t, p.partial)
}

// A second caller does not repeat a count, and one without time does not begin one.
func TestRefreshDiskUsage_CountsNothingTwice(t *testing.T) {
	pod := podOf(t, "a")
	p := newTestProvider(t, Config{Pods: func() []Pod { return []Pod{pod} }})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	p.RefreshDiskUsage(over, time.Now())
	assert.True(t, p.counted("a").IsZero())
	began := time.Now()
	p.RefreshDiskUsage(t.Context(), began)
	first := p.counted("a")
	assert.True(t, first.After(began))
	p.RefreshDiskUsage(t.Context(), began)
	assert.Equal(t, first, p.counted("a"))
	p.RefreshDiskUsage(t.Context(), first)
	assert.True(t, p.counted("a").After(first))
}

// The pressure of pods is read if their cgroups report it and tasks on the node wait.
func TestProvider_PressureOfPods(t *testing.T) {
	line := func(avg string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("some avg10=" + avg + " avg60=0.00 avg300=0.00 total=5\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=1\n")}
	}
	cgroups := fstest.MapFS{
		"cgroup.controllers": {Data: []byte("memory io\n")}, "kubepods/a/memory.pressure": line("30.00"), "kubepods/a/io.pressure": line("40.00"),
	}
	pods := []Pod{{Pod: podOf(t, "a").Pod, Cgroup: "/kubepods/a"}, {Pod: podOf(t, "b").Pod, Cgroup: "/kubepods/b"}}
	proc := fstest.MapFS{
		"meminfo":         {Data: []byte("MemTotal: 1000 kB\n")},
		"pressure/memory": line("0.01"), "pressure/io": line("0.00"),
	}
	p := newTestProvider(t, Config{Pods: func() []Pod { return pods }, Cgroups: cgroups, Proc: proc})
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.InDelta(t, 30, u.Pods[0].MemoryPressure.Some.Avg10, 0)
	assert.False(t, u.Pods[0].MemoryPressure.At.IsZero())
	assert.True(t, u.Pods[0].IOPressure.At.IsZero(), "no caller waits for a disk")
	assert.True(t, u.Pods[1].MemoryPressure.At.IsZero(), "it has no group")
	proc["pressure/io"] = line("0.50")
	u, err = p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.InDelta(t, 40, u.Pods[0].IOPressure.Some.Avg10, 0)

	delete(cgroups, "cgroup.controllers")
	p = newTestProvider(t, Config{Pods: func() []Pod { return pods }, Cgroups: cgroups, Proc: proc})
	u, err = p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.True(t, u.Pods[0].MemoryPressure.At.IsZero(), "cgroup v1 does not tell")
}

// hangs returns only when its context ends.
type hangs struct{}

func (hangs) ContainerStats(ctx context.Context) ([]runtime.ContainerUsage, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A runtime that hangs does not prevent measurements of the node: they are returned within
// seconds, and are made after the wait.
func TestProvider_RuntimeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hang bool
		p := newTestProvider(t, Config{
			ContainerStats: hangs{}, NodeFS: "/",
			Statfs: func(path string) (runtime.FSUsage, error) {
				return runtime.FSUsage{At: time.Now(), Mountpoint: path}, nil
			},
			ImageFS: imageFSFunc(func(ctx context.Context) error {
				if hang {
					<-ctx.Done()
					return errors.New("no answer")
				}
				return nil
			}),
		})
		began := time.Now()
		u, err := p.Usage(t.Context(), time.Time{})
		require.NoError(t, err)
		assert.Equal(t, runtimeWait, time.Since(began))
		assert.Equal(t, time.Now(), u.Memory.At)

		hang = true
		time.Sleep(imageDirsTTL)
		began = time.Now()
		u, err = p.NodeUsage(t.Context())
		require.NoError(t, err)
		assert.Equal(t, imageDirsTimeout, time.Since(began))
		assert.Equal(t, "/images", u.ImageFS.Mountpoint)
		p.setImageDirs(imageDirs{})
		began = time.Now()
		_, err = p.NodeUsage(t.Context())
		require.NoError(t, err)
		assert.Equal(t, runtimeWait, time.Since(began))
	})
}

// imageFSFunc reports /images, or the error of a call.
type imageFSFunc func(ctx context.Context) error

func (f imageFSFunc) ImageFS(ctx context.Context) (images, containers []runtime.FSUsage, err error) {
	return []runtime.FSUsage{{Mountpoint: "/images"}}, nil, f(ctx)
}
