//go:build linux

package eviction_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
)

// diskPods are pods with one directory each on a small file system.
type diskPods struct {
	dir string

	mu      sync.Mutex
	pods    []*corev1.Pod
	evicted []types.UID
	message string
}

func (d *diskPods) podDir(uid types.UID) string { return filepath.Join(d.dir, string(uid)) }

func (d *diskPods) add(t *testing.T, uids ...types.UID) {
	t.Helper()
	for _, uid := range uids {
		require.NoError(t, os.MkdirAll(d.podDir(uid), 0o700))
		d.pods = append(d.pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: uid, Name: string(uid), Namespace: "ns"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
		})
	}
}

func (d *diskPods) ActivePods() []*corev1.Pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.pods)
}

func (d *diskPods) Evict(_ context.Context, pod *corev1.Pod, t runtime.Termination) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods = without(d.pods, pod.UID)
	d.evicted, d.message = append(d.evicted, pod.UID), t.Message
	return os.RemoveAll(d.podDir(pod.UID))
}

// write writes to the directory of a pod that is still active. An eviction in
// progress waits for it, so that no file appears behind the removal.
func (d *diskPods) write(uid types.UID, fill func(dir string) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.Contains(d.evicted, uid) {
		return nil
	}
	return fill(d.podDir(uid))
}

func (d *diskPods) evictions() []types.UID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.evicted)
}

// EV-5, EV-12: on a real file system that fills up, by bytes and by inodes,
// only the pod with the highest usage is evicted. The greedy pod stops at three
// quarters of the file system, because the manager may be slower than it.
func TestManager_EvictsGreedyPodOnRealDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a file system")
	}
	for _, tc := range []struct {
		hard    string
		fill    func(dir string, n int) error
		steps   int
		message string
	}{
		{"nodefs.available<50%", func(dir string, n int) error {
			return os.WriteFile(filepath.Join(dir, strconv.Itoa(n)), make([]byte, 1<<20), 0o600)
		}, 24, "The node was low on resource: ephemeral-storage. Threshold quantity: 16Mi, available: "},
		{"nodefs.inodesFree<50%", func(dir string, n int) error {
			for i := range 50 {
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d-%d", n, i)), nil, 0o600); err != nil {
					return err
				}
			}
			return nil
		}, 30, "The node was low on resource: inodes. Threshold quantity: 1k, available: "},
	} {
		t.Run(tc.hard, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32m,nr_inodes=2000"))
			t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
			pods := &diskPods{dir: dir}
			pods.add(t, "calm", "greedy", "idle")
			node, err := stats.New(stats.Config{NodeFS: dir, Pods: func() (out []stats.Pod) {
				for _, p := range pods.ActivePods() {
					out = append(out, stats.Pod{Pod: p, Volumes: map[string]stats.Volume{"data": {Path: pods.podDir(p.UID)}}})
				}
				return out
			}, DiskUsagePeriod: 30 * time.Millisecond})
			require.NoError(t, err)
			m, err := eviction.New(eviction.Config{Usage: node, Pods: pods, Thresholds: hardThresholds(tc.hard), MonitoringPeriod: 10 * time.Millisecond})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { assert.NoError(t, node.Run(ctx)) })
			wg.Go(func() { assert.NoError(t, m.Run(ctx)) })
			defer wg.Wait()
			defer cancel()
			require.NoError(t, pods.write("calm", func(dir string) error { return tc.fill(dir, 0) }))
			for n := range tc.steps {
				require.NoError(t, pods.write("greedy", func(dir string) error { return tc.fill(dir, n) }))
				time.Sleep(5 * time.Millisecond)
			}
			require.Eventually(t, func() bool { return len(pods.evictions()) > 0 }, time.Minute, time.Millisecond)
			time.Sleep(100 * time.Millisecond)
			pods.mu.Lock()
			defer pods.mu.Unlock()
			assert.Equal(t, []types.UID{"greedy"}, pods.evicted)
			assert.Contains(t, pods.message, tc.message)
		})
	}
}

// EV-5: the same with processes, limited by a cgroup. The pods fork fewer
// processes than the limit allows, so that no fork fails before the eviction.
func TestManager_EvictsPodWithMostProcesses(t *testing.T) {
	parent := uniqueCgroup("evictionpids")
	if _, err := os.Stat(cgroupRoot + "/pids/cgroup.procs"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and cgroup v1")
	}
	k := &kernelPods{t: t, parent: parent, cmds: map[types.UID]*exec.Cmd{}}
	t.Cleanup(func() {
		for _, h := range []string{"memory", "pids", "cpuacct"} {
			dirs, _ := filepath.Glob(filepath.Join(cgroupRoot, h, parent, "pod*"))
			for _, d := range append(dirs, filepath.Join(cgroupRoot, h, parent)) {
				assert.Eventually(t, func() bool { return os.Remove(d) == nil }, time.Minute, 10*time.Millisecond, d)
			}
		}
	})
	for uid, n := range map[types.UID]int{"few": 2, "many": 30} {
		for _, h := range []string{"memory", "pids", "cpuacct"} {
			require.NoError(t, os.MkdirAll(filepath.Join(cgroupRoot, h, k.group(uid)), 0o755))
		}
		script := fmt.Sprintf("echo $$ > %s/pids%s/cgroup.procs; for i in $(seq %d); do sleep 100 & done; wait", cgroupRoot, k.group(uid), n)
		cmd := exec.Command("sh", "-c", script)
		cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL); _ = cmd.Wait() })
		k.cmds[uid] = cmd
		k.pods = append(k.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Name: string(uid), Namespace: "ns"}})
	}
	require.NoError(t, os.WriteFile(cgroupRoot+"/pids"+parent+"/pids.max", []byte("50"), 0o600))
	node, err := stats.New(stats.Config{NodeCgroup: parent, Pods: func() (out []stats.Pod) {
		for _, p := range k.ActivePods() {
			out = append(out, stats.Pod{Pod: p, Cgroup: k.group(p.UID)})
		}
		return out
	}})
	require.NoError(t, err)
	m, err := eviction.New(eviction.Config{Usage: node, Pods: killer{k}, Thresholds: hardThresholds("pid.available<25"), MonitoringPeriod: 10 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	require.Eventually(t, func() bool { return len(k.ActivePods()) == 1 }, time.Minute, time.Millisecond)
	time.Sleep(100 * time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	assert.Equal(t, []types.UID{"many"}, k.evicted)
	assert.Regexp(t, `^The node was low on resource: pids\. Threshold quantity: 25, available: \d+\. $`, k.termination.Message)
}

// killer kills the process group of a pod.
type killer struct{ *kernelPods }

func (k killer) Evict(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error {
	k.mu.Lock()
	cmd := k.cmds[pod.UID]
	k.mu.Unlock()
	if err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL); err != nil {
		return err
	}
	err := k.kernelPods.Evict(ctx, pod, t)
	for ctx.Err() == nil { // the pod is cleaned up when its cgroup has no process
		left, err := os.ReadFile(cgroupRoot + "/pids" + k.group(pod.UID) + "/pids.current")
		if err != nil || string(left) == "0\n" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return err
}
