package hostprocess

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

func TestCPUTime(t *testing.T) {
	start := time.Now()
	for name, sums := range map[string][][2]int{ // sum and total, in seconds
		"grows":                         {{1, 1}, {1, 1}, {5, 5}},
		"without a process from now on": {{10, 10}, {4, 10}, {5, 10}, {7, 12}, {6, 12}, {7, 12}, {8, 13}},
		"a process was missed once":     {{10, 10}, {4, 10}, {11, 11}, {3, 11}, {12, 12}},
	} {
		t.Run(name, func(t *testing.T) {
			var c cpuTime
			for i, s := range sums {
				at := start.Add(time.Duration(i) * time.Second)
				assert.Equal(t, time.Duration(s[1])*time.Second, c.add(time.Duration(s[0])*time.Second, at), "sum %d", i)
				assert.Equal(t, time.Duration(s[1])*time.Second, c.add(0, at), "of the same time")
			}
		})
	}
}

// The time of a process that has exited stays counted.
func TestExecutor_CPUTimeNeverFalls(t *testing.T) {
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) // process 1 might not reap
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	for name, script := range map[string]string{ // each starts a process that runs until a file exists
		"of one that is not waited for": "(setsid sh -c 'echo $$ > %[1]s; while ! [ -e %[2]s ]; do :; done' &); exec sleep 1000",
		"of a zombie":                   "sh -c 'echo $$ > %[1]s; while ! [ -e %[2]s ]; do :; done' & exec sleep 1000",
	} {
		t.Run(name, func(t *testing.T) {
			h := New(Config{Root: t.TempDir(), Unprivileged: true})
			h.reaper.period = time.Millisecond
			g := newRig(t, h)
			file, end := filepath.Join(t.TempDir(), "pid"), filepath.Join(t.TempDir(), "end")
			id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sh", "-c", fmt.Sprintf(script, file, end))
			pid := pidIn(t, file)
			measure := func() uint64 {
				h.table.mu.Lock()
				h.table.at = time.Time{} // measure again
				h.table.mu.Unlock()
				r, err := g.CRI.ContainerStats(t.Context(), &v1.ContainerStatsRequest{ContainerId: id})
				require.NoError(t, err)
				return r.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue()
			}
			var used uint64
			require.Eventually(t, func() bool { used = measure(); return used > uint64(100*time.Millisecond) }, time.Minute, time.Millisecond)
			require.NoError(t, os.WriteFile(end, nil, 0o600))
			isZombie := name == "of a zombie"
			require.Eventually(t, func() bool {
				_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
				return !alive(pid) && os.IsNotExist(err) != isZombie
			}, time.Minute, time.Millisecond)
			for range 4 {
				now := measure()
				assert.GreaterOrEqual(t, now, used)
				used = now
			}
			if isZombie { // whose parent may take its time over later
				h.reaper.mu.Lock()
				defer h.reaper.mu.Unlock()
				for _, p := range h.reaper.running {
					u, _ := h.table.of(p.pid, p.tag)
					assert.Equal(t, time.Duration(used), u.CPU)
				}
			}
		})
	}
}
