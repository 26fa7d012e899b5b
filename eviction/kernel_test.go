package eviction_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
)

const cgroupRoot = "/sys/fs/cgroup"

// uniqueCgroup returns the path of a cgroup that no other process uses.
func uniqueCgroup(name string) string { return fmt.Sprintf("/lab/%s-%d", name, os.Getpid()) }

// TestMain lets the test binary be a process that consumes memory.
func TestMain(m *testing.M) {
	if group := os.Getenv("CONSUME_CGROUP"); group != "" {
		consumeMemory(group)
		return
	}
	leaktest.Main(m)
}

// consumeMemory joins a cgroup and allocates CONSUME_FIRST MiB at once, then
// CONSUME_MORE MiB, one every 2 ms. It never exceeds their sum, so that a slow
// manager is not overtaken by the OOM killer.
func consumeMemory(group string) {
	for _, h := range []string{"memory", "pids"} {
		if err := os.WriteFile(filepath.Join(cgroupRoot, h, group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
			panic(err)
		}
	}
	var memory [][]byte
	take := func(mib int) {
		b := make([]byte, mib<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		memory = append(memory, b)
	}
	size := func(variable string) int {
		n, err := strconv.Atoi(os.Getenv(variable))
		if err != nil {
			panic(err)
		}
		return n
	}
	take(size("CONSUME_FIRST"))
	fmt.Println("ready")
	for range size("CONSUME_MORE") {
		time.Sleep(2 * time.Millisecond)
		take(1)
	}
	time.Sleep(time.Minute)
	_ = len(memory)
}

// kernelPods are pods whose only container is a process of this test in a cgroup.
type kernelPods struct {
	t      *testing.T
	parent string

	mu          sync.Mutex
	pods        []*corev1.Pod
	cmds        map[types.UID]*exec.Cmd
	evicted     []types.UID
	evictedAt   time.Time
	termination runtime.Termination
}

func (k *kernelPods) group(uid types.UID) string { return k.parent + "/pod" + string(uid) }

func (k *kernelPods) add(uid types.UID, request string, first, more int) {
	for _, h := range []string{"memory", "pids", "cpuacct"} {
		require.NoError(k.t, os.MkdirAll(filepath.Join(cgroupRoot, h, k.group(uid)), 0o755))
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CONSUME_CGROUP="+k.group(uid), "CONSUME_FIRST="+strconv.Itoa(first), "CONSUME_MORE="+strconv.Itoa(more), "GOGC=off", "GOMAXPROCS=1")
	out, err := cmd.StdoutPipe()
	require.NoError(k.t, err)
	require.NoError(k.t, cmd.Start())
	_, err = out.Read(make([]byte, 6))
	require.NoError(k.t, err)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cmds[uid] = cmd
	k.pods = append(k.pods, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: uid, Name: string(uid), Namespace: "ns"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request)},
		}}}},
	})
}

func (k *kernelPods) ActivePods() []*corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]*corev1.Pod(nil), k.pods...)
}

func (k *kernelPods) Evict(_ context.Context, pod *corev1.Pod, t runtime.Termination) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.evictedAt, k.termination = time.Now(), t
	k.evicted = append(k.evicted, pod.UID)
	cmd := k.cmds[pod.UID]
	k.pods = without(k.pods, pod.UID)
	err := cmd.Process.Kill()
	_ = cmd.Wait()
	return err
}

func without(pods []*corev1.Pod, uid types.UID) []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range pods {
		if p.UID != uid {
			out = append(out, p)
		}
	}
	return out
}

// EV-5, EV-6, EV-10: only the pod above its request is evicted, on the memory
// threshold notification of the kernel: the next poll is an hour away.
func TestManager_EvictsOnMemoryThresholdNotification(t *testing.T) {
	parent := uniqueCgroup("evictiontest")
	if _, err := os.Stat(cgroupRoot + "/memory/cgroup.event_control"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and cgroup v1")
	}
	k := &kernelPods{t: t, parent: parent, cmds: map[types.UID]*exec.Cmd{}}
	t.Cleanup(func() {
		for _, cmd := range k.cmds {
			if cmd.ProcessState == nil {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
		}
		for _, h := range []string{"memory", "pids", "cpuacct"} {
			dirs, _ := filepath.Glob(filepath.Join(cgroupRoot, h, parent, "pod*"))
			for _, d := range append(dirs, filepath.Join(cgroupRoot, h, parent)) {
				assert.NoError(t, os.Remove(d))
			}
		}
	})
	dir := filepath.Join(cgroupRoot, "memory", parent)
	for _, h := range []string{"memory", "pids", "cpuacct"} {
		require.NoError(t, os.MkdirAll(filepath.Join(cgroupRoot, h, parent), 0o755))
	}
	const limit, threshold = 512 << 20, 200 << 20
	require.NoError(t, os.WriteFile(dir+"/memory.limit_in_bytes", []byte(strconv.Itoa(limit)), 0o600))

	node, err := stats.New(stats.Config{
		NodeCgroup: parent,
		Pods: func() (out []stats.Pod) {
			for _, p := range k.ActivePods() {
				out = append(out, stats.Pod{Pod: p, Cgroup: k.group(p.UID)})
			}
			return out
		},
	})
	require.NoError(t, err)
	notifier, err := eviction.NewMemoryThresholdNotifier(cgroupRoot+"/memory", func() string { return parent }, eviction.MemoryAvailable)
	require.NoError(t, err)
	m, err := eviction.New(eviction.Config{
		Usage: node, Pods: k, Thresholds: hardThresholds("memory.available<200Mi"), MonitoringPeriod: time.Hour, Notifiers: []eviction.ThresholdNotifier{notifier},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()

	k.add("calm", "100Mi", 40, 0)
	k.add("below", "400Mi", 60, 0)
	time.Sleep(50 * time.Millisecond)
	met := make(chan time.Time, 1)
	go func() { // reads the usage of the cgroup by itself
		for ctx.Err() == nil {
			data, err := os.ReadFile(dir + "/memory.usage_in_bytes")
			if n, _ := strconv.Atoi(string(data[:max(len(data)-1, 0)])); err == nil && n > limit-threshold {
				met <- time.Now()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	k.add("greedy", "30Mi", 20, 300)
	var metAt time.Time
	select {
	case metAt = <-met:
	case <-time.After(time.Minute):
		t.Fatal("the threshold was not met")
	}
	require.Eventually(t, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.evicted) > 0
	}, time.Minute, time.Millisecond)
	time.Sleep(200 * time.Millisecond)
	k.mu.Lock()
	defer k.mu.Unlock()
	assert.Equal(t, []types.UID{"greedy"}, k.evicted)
	t.Logf("evicted %v after the threshold was met", k.evictedAt.Sub(metAt))
	assert.Regexp(t, `^The node was low on resource: memory\. Threshold quantity: 200Mi, available: \d+[KM]i\. $`, k.termination.Message)
	assert.True(t, k.termination.Evicted)
	assert.Equal(t, time.Second, k.termination.GracePeriod)
	conditions := m.Conditions()
	assert.Equal(t, corev1.ConditionTrue, conditions[0].Status)
	cancel()
	require.NoError(t, <-done)
}

// EV-10: the kernel accepts a pressure trigger, and Watch returns when its
// context is done.
func TestPSINotifier_NotifiesOfStall(t *testing.T) {
	if _, err := os.Stat("/proc/pressure/memory"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and pressure stall information")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- eviction.PSINotifier{Path: "/proc/pressure/cpu", Stall: time.Millisecond}.Watch(ctx, cancel)
	}()
	stop := make(chan struct{})
	defer close(stop)
	for range 4 { // more work than processors, so that some task waits
		go func() {
			for !closed(stop) {
			}
		}()
	}
	select {
	case err := <-done: // the notification cancelled the context
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("no notification")
	}
	err := eviction.PSINotifier{Path: filepath.Join(t.TempDir(), "none")}.Watch(t.Context(), nil)
	require.ErrorIs(t, err, runtime.ErrUnsupported)
	err = eviction.MemoryEventsNotifier{Path: filepath.Join(t.TempDir(), "none")}.Watch(t.Context(), nil)
	require.ErrorIs(t, err, runtime.ErrUnsupported)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
