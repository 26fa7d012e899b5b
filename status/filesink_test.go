package status_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// ST-9: what one process wrote the next one reads.
func TestFileSinkRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "statuses")
	s, err := status.NewFileSink(dir)
	require.NoError(t, err)
	p := pod("init:i", "main:c")
	st := status.Generate(p, runtime.Report{Observed: view(running("c", 2), exited("c", 1, 3), exited("i", 0, 0))}, corev1.PodStatus{}, status.NodeInfo{RuntimeName: "containerd"}, testTime)
	require.NoError(t, s.SetStatus(t.Context(), p, st))

	info, err := os.Stat(filepath.Join(dir, "ns_p_uid-1.json"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	info, err = os.Stat(dir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	reopened, err := status.NewFileSink(dir)
	require.NoError(t, err)
	pods, err := reopened.Load()
	require.NoError(t, err)
	require.Len(t, pods, 1)
	assert.True(t, equality.Semantic.DeepEqual(st, pods[0].Status))
	assert.Equal(t, "Pod", pods[0].Kind)

	require.NoError(t, reopened.DeleteStatus(t.Context(), p))
	require.NoError(t, reopened.DeleteStatus(t.Context(), p))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// ST-9: broken and foreign files are errors and do not hide the good ones.
func TestFileSinkLoadsAroundBrokenFiles(t *testing.T) {
	dir := t.TempDir()
	s, err := status.NewFileSink(dir)
	require.NoError(t, err)
	require.NoError(t, s.SetStatus(t.Context(), pod("main:c"), corev1.PodStatus{Phase: corev1.PodRunning}))
	good, err := os.ReadFile(filepath.Join(dir, "ns_p_uid-1.json"))
	require.NoError(t, err)
	for name, data := range map[string][]byte{
		"half.json":             good[:len(good)/2],
		"stolen.json":           good,
		"huge.json":             []byte(strings.Repeat(" ", 5<<20)),
		".ns_p_uid-2.json.tmp":  good[:10], // left by a crash
		"README":                []byte("not mine"),
		"ns_empty_uid-3.json":   nil,
		"ns_number_uid-4.json":  []byte("7"),
		"ns_nul_uid-5\x7f.json": []byte("null"),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link.json")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "dir.json"), 0o700))
	pods, err := s.Load()
	require.Len(t, pods, 1)
	assert.Equal(t, corev1.PodRunning, pods[0].Status.Phase)
	for _, name := range []string{"half", "stolen", "huge", "ns_empty", "ns_number", "ns_nul", "link", "dir"} {
		assert.ErrorContains(t, err, name)
	}
	assert.NotContains(t, err.Error(), "README")
	assert.NotContains(t, err.Error(), ".tmp")
}

func TestFileSinkChecksNames(t *testing.T) {
	s, err := status.NewFileSink(t.TempDir())
	require.NoError(t, err)
	for _, bad := range []string{"", "../x", "a/b", ".", "a\x00b", `a\b`} {
		p := pod("main:c")
		p.Name = bad
		require.Error(t, s.SetStatus(t.Context(), p, corev1.PodStatus{}), "%q", bad)
		require.Error(t, s.DeleteStatus(t.Context(), p), "%q", bad)
	}
	p := pod("main:c")
	p.Name = strings.Repeat("n", 253)
	require.NoError(t, s.SetStatus(t.Context(), p, corev1.PodStatus{}))
	pods, err := s.Load()
	require.NoError(t, err)
	require.Len(t, pods, 1)
	_, err = status.NewFileSink("")
	require.Error(t, err)
}

// A directory that does not exist is empty.
func TestNewFileSink_RequiresDirectory(t *testing.T) {
	s, err := status.NewFileSink(filepath.Join(t.TempDir(), "none"))
	require.NoError(t, err)
	pods, err := s.Load()
	require.NoError(t, err)
	assert.Empty(t, pods)
	require.NoError(t, s.DeleteStatus(t.Context(), pod("main:c")))
}

// A directory that is removed meanwhile is created again, and what a crash left
// half written is written over.
func TestFileSink_RecreatesRemovedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "statuses")
	s, err := status.NewFileSink(dir)
	require.NoError(t, err)
	p := pod("main:c")
	for i, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodFailed} {
		require.NoError(t, s.SetStatus(t.Context(), p, corev1.PodStatus{Phase: phase}))
		pods, err := s.Load()
		require.NoError(t, err)
		require.Len(t, pods, 1)
		assert.Equal(t, phase, pods[0].Status.Phase)
		if i == 0 {
			require.NoError(t, os.WriteFile(filepath.Join(dir, ".ns_p_uid-1.json.tmp"), []byte("half"), 0o600))
		} else {
			require.NoError(t, os.RemoveAll(dir))
		}
	}
	require.NoError(t, s.DeleteStatus(t.Context(), p))
	assert.NoDirExists(t, dir)
}

// Many at once, which share syncs of the directory, each find their file written.
func TestFileSinkManyAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "statuses")
	s, err := status.NewFileSink(dir)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			p := pod("main:c")
			p.Name, p.UID = fmt.Sprint("p", i), types.UID(fmt.Sprint("uid-", i))
			for j := range 5 {
				want := corev1.PodStatus{Message: fmt.Sprint(j)}
				assert.NoError(t, s.SetStatus(t.Context(), p, want))
				data, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("ns_p%d_uid-%d.json", i, i)))
				assert.NoError(t, err)
				assert.Contains(t, string(data), fmt.Sprintf(`"message":"%d"`, j))
			}
			if i%2 == 0 {
				assert.NoError(t, s.DeleteStatus(t.Context(), p))
			}
		})
	}
	wg.Wait()
	pods, err := s.Load()
	require.NoError(t, err)
	assert.Len(t, pods, 10)
}

func BenchmarkFileSinkManyAtOnce(b *testing.B) {
	s, err := status.NewFileSink(filepath.Join(b.TempDir(), "statuses"))
	require.NoError(b, err)
	b.SetParallelism(5) // with two cores as many as a Manager sends at once
	var n atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		p := pod("main:c")
		p.UID = types.UID(fmt.Sprint("uid-", n.Add(1)))
		for i := 0; pb.Next(); i++ {
			if err := s.SetStatus(b.Context(), p, corev1.PodStatus{Message: fmt.Sprint(i)}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A status may be written later only if the next process can do without it.
func TestFileSink_DelaysWhatCanBeLost(t *testing.T) {
	sink, err := status.NewFileSink(t.TempDir())
	require.NoError(t, err)
	waiting := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: new(corev1.ContainerStateWaiting)}}
	ended, run := waiting, corev1.ContainerStatus{State: corev1.ContainerState{Running: new(corev1.ContainerStateRunning)}}
	ended.LastTerminationState.Terminated = new(corev1.ContainerStateTerminated)
	created, restarted := waiting, waiting
	created.ContainerID = "r://1" // attempts count from it
	restarted.RestartCount = 1
	exited := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: new(corev1.ContainerStateTerminated)}}
	assert.Zero(t, sink.Delay(&corev1.PodStatus{Phase: corev1.PodPending}), "by default none")
	sink.DelayPending(time.Minute)
	for name, tc := range map[string]struct {
		st   corev1.PodStatus
		want time.Duration
	}{
		"nothing yet":          {corev1.PodStatus{Phase: corev1.PodPending}, time.Minute},
		"waiting containers":   {corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{waiting}, ContainerStatuses: []corev1.ContainerStatus{waiting, waiting}}, time.Minute},
		"a running init":       {corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{run}}, 0},
		"an exited init":       {corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{exited, waiting}}, 0},
		"a last exit":          {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{waiting, ended}}, 0},
		"a created container":  {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{created}}, 0},
		"a restart":            {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{restarted}}, 0},
		"an ephemeral one":     {corev1.PodStatus{Phase: corev1.PodPending, EphemeralContainerStatuses: []corev1.ContainerStatus{run}}, 0},
		"a running pod":        {corev1.PodStatus{Phase: corev1.PodRunning}, 0},
		"a rejected pod":       {corev1.PodStatus{Phase: corev1.PodFailed}, 0},
		"a pod that succeeded": {corev1.PodStatus{Phase: corev1.PodSucceeded}, 0},
	} {
		assert.Equal(t, tc.want, sink.Delay(&tc.st), name)
	}
}
