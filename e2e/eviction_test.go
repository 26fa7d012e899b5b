//go:build linux

package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
)

const (
	mib        = 1 << 20
	transition = time.Second
	// evictionBound is from the moment when a threshold of memory or processes is met to the
	// decision, and to the signal that ends the pod on a machine whose runtime takes no time.
	evictionBound = 500 * time.Millisecond
	// hardGracePeriod is what a pod gets to exit in when a hard threshold is met. On a slow
	// machine a shell with a hundred children uses it up.
	hardGracePeriod = time.Second
	quietPeriod     = "sleep 1000000 & wait"
)

// pressureEnv is a node that can get under pressure: its memory and process ids are those
// of a cgroup, and its disk is a small file system.
type pressureEnv struct {
	t      *testing.T
	node   *containerdtest.Node
	disk   string
	pods   *podsource.Memory
	agent  *agent.Agent
	stop   func()
	logged logLines

	stopTime time.Duration // of a raw StopContainer

	mu      sync.Mutex
	last    map[string]corev1.PodStatus
	asked   map[string]time.Time // when evictions were decided on
	ended   map[string]time.Time // when evictions had ended
	signals []eviction.Signal
	ranked  []string    // the candidates of the last eviction, in order
	changes []condition // of the node, in order
}

type condition struct {
	at   time.Time
	kind corev1.NodeConditionType
	met  bool
}

// logLines collects the log of an agent.
type logLines struct{ logtest.Buffer }

func (l *logLines) with(part string) (out []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, part) {
			out = append(out, line)
		}
	}
	return out
}

// newPressureEnv starts an agent with thresholds and pods on the node.
func newPressureEnv(t *testing.T, n *containerdtest.Node, hard string, pods ...*corev1.Pod) *pressureEnv {
	t.Helper()
	s := &pressureEnv{
		t: t, node: n, disk: filepath.Join(n.Shared, "small"), pods: podsource.NewMemory(pods...),
		last: map[string]corev1.PodStatus{}, asked: map[string]time.Time{}, ended: map[string]time.Time{},
	}
	require.NoError(t, os.MkdirAll(s.disk, 0o755))
	require.NoError(t, unix.Mount("tmpfs", s.disk, "tmpfs", 0, "size=64m,nr_inodes=4000"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(s.disk, unix.MNT_DETACH)) })
	thresholds, err := eviction.ParseThresholds(hard, "", "", "")
	require.NoError(t, err)
	s.agent, err = agent.New(
		agent.WithRuntimeEndpoint(n.Endpoint()), agent.WithNodeName(nodeName),
		agent.WithNode(node.Config{NodeCgroup: n.CgroupParent, CgroupRoot: n.CgroupParent, PodLogsDir: filepath.Join(s.disk, "logs")}),
		agent.WithRootDir(filepath.Join(s.disk, "agent")), agent.WithSource("memory", s.pods), agent.WithStatusSink(s),
		agent.WithConfig(eviction.Config{Thresholds: thresholds, PressureTransitionPeriod: transition, MonitoringPeriod: time.Hour, PodCleanupTimeout: longRunTime, EvictCritical: true}),
		agent.WithLogger(slog.New(slog.NewTextHandler(&s.logged, nil))),
		agent.WithHooks(agent.Hooks{Eviction: eviction.Hooks{Evicting: s.evicting, Evicted: s.evicted, ConditionsChanged: s.conditions}}),
	)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.agent.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
		n.Purge(t) // the next agent on this node has another root directory, and these pods are not its own
	})
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("log of the agent:\n%s", s.logged.String())
		}
	})
	return s
}

func (s *pressureEnv) SetStatus(_ context.Context, p *corev1.Pod, st corev1.PodStatus) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last[p.Name] = st
	return nil
}

func (s *pressureEnv) evicting(signal eviction.Signal, ranked []eviction.Candidate, _ runtime.Termination) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[ranked[0].Pod.Name], s.signals, s.ranked = time.Now(), append(s.signals, signal), nil
	for _, c := range ranked {
		s.ranked = append(s.ranked, c.Pod.Name)
	}
}

func (s *pressureEnv) evicted(_ eviction.Signal, pod *corev1.Pod, _ time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if assert.NoError(s.t, err) {
		s.ended[pod.Name] = time.Now()
	}
}

func (s *pressureEnv) conditions(all []corev1.NodeCondition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range all {
		met := c.Status == corev1.ConditionTrue
		i := slices.IndexFunc(s.changes, func(had condition) bool { return had.kind == c.Type })
		if i >= 0 || met {
			s.changes = append(s.changes, condition{time.Now(), c.Type, met})
		}
	}
}

func (s *pressureEnv) status(name string) corev1.PodStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[name]
}

func (s *pressureEnv) running(names ...string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		return !slices.ContainsFunc(names, func(n string) bool { return s.status(n).Phase != corev1.PodRunning })
	}, longRunTime, 10*time.Millisecond, "%v", names)
}

// requireEviction starts a pod with the script, and requires that it alone is evicted and
// that the node reports the condition for the transition period. left reads from the
// kernel how much is available above the threshold.
func (s *pressureEnv) requireEviction(script, request string, signal eviction.Signal, kind corev1.NodeConditionType, message string, left func() (int64, error)) {
	s.t.Helper()
	s.running("calm", "modest")
	name := "greedy-" + strings.ToLower(strings.ReplaceAll(string(signal), ".", "-"))
	ctx, cancel := context.WithTimeout(s.t.Context(), longRunTime)
	defer cancel()
	crossed := make(chan crossing, 1)
	go func() { crossed <- watch(ctx, left) }() // an independent measurement
	s.pods.Put(hungry(name, s.node.Busybox, request, script))
	require.Eventually(s.t, func() bool { return s.status(name).Phase == corev1.PodFailed }, longRunTime, 10*time.Millisecond, name)
	cancel()
	st := s.status(name)
	exited := s.exitTime(&st)
	c := <-crossed
	at := c.at
	require.False(s.t, at.IsZero(), "the threshold was never met")
	require.Eventually(s.t, func() bool {
		_, ended := s.lasted(kind)
		return !ended.IsZero() && !s.reports(kind)
	}, longRunTime, 10*time.Millisecond)

	require.Equal(s.t, eviction.Reason, st.Reason)
	require.Regexp(s.t, message, st.Message)
	require.True(s.t, slices.ContainsFunc(st.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Message == st.Message
	}), "%v", st.Conditions)
	began, ended := s.lasted(kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	decided, evicted := s.asked[name], s.ended[name]
	s.t.Logf("measured: %s: decided %v after the crossing, exited %v after it, all cleaned up %v after it; this process was held up for %v in all, and a raw StopContainer takes %v",
		signal, decided.Sub(at).Round(time.Millisecond), exited.Sub(at).Round(time.Millisecond), evicted.Sub(at).Round(time.Millisecond), c.lag.Round(time.Millisecond), s.stopTime.Round(time.Millisecond))
	if signal == eviction.MemoryAvailable || signal == eviction.PIDAvailable {
		// A machine that is slow itself holds up the agent as it does this process.
		bound := containerdtest.Timeout(evictionBound) + c.lag
		require.Less(s.t, decided.Sub(at), bound)
		require.Less(s.t, exited.Sub(at), bound+hardGracePeriod+2*s.stopTime)
	}
	require.Equal(s.t, signal, s.signals[len(s.signals)-1])
	require.Equal(s.t, []string{name}, s.ranked[:1], "ranked %v", s.ranked)
	require.Len(s.t, s.ranked, 3, "all were candidates")
	require.Len(s.t, s.asked, len(s.signals), "no pod was evicted twice")
	// The next periodic measurement is an hour away: the kernel notified or, where it
	// cannot, the manager polled as soon as the threshold could be met.
	require.Less(s.t, decided.Sub(at), longRunTime)
	require.GreaterOrEqual(s.t, ended.Sub(began), transition, "the condition lasts for the transition period")
	require.Less(s.t, ended.Sub(evicted), transition+longRunTime)
	for _, other := range []string{"calm", "modest"} {
		require.Equal(s.t, corev1.PodRunning, s.last[other].Phase, other)
		require.Zero(s.t, s.last[other].ContainerStatuses[0].RestartCount)
	}
	s.changes = nil
	require.Len(s.t, s.logged.with("evicting pod"), len(s.signals), "one line per eviction")
	require.True(s.t, s.pods.Delete("default", name))
}

// lasted returns when the condition was first reported, and when it ended, if it has.
func (s *pressureEnv) lasted(kind corev1.NodeConditionType) (began, ended time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.changes {
		if c.kind == kind && c.met && began.IsZero() {
			began = c.at
		} else if c.kind == kind && !c.met && !began.IsZero() {
			ended = c.at
		}
	}
	return began, ended
}

// crossing is when a threshold was met, and for how long the watch was held up from then on, in all.
type crossing struct {
	at  time.Time
	lag time.Duration
}

const watchPeriod = 3 * time.Millisecond

// watch reads what is left every few milliseconds until ctx is done.
func watch(ctx context.Context, left func() (int64, error)) (c crossing) {
	last := time.Now()
	for ctx.Err() == nil {
		n, err := left()
		now := time.Now()
		if c.at.IsZero() && err == nil && n < 0 {
			c.at = now
		}
		if late := now.Sub(last) - watchPeriod; !c.at.IsZero() && late > watchPeriod {
			c.lag += late
		}
		last = now
		time.Sleep(watchPeriod)
	}
	return c
}

// exitTime is when the runtime says that the pod's container exited. That of the status has whole seconds.
func (s *pressureEnv) exitTime(st *corev1.PodStatus) time.Time {
	s.t.Helper()
	_, id, ok := strings.Cut(st.ContainerStatuses[0].ContainerID, "://")
	require.True(s.t, ok, "%v", st.ContainerStatuses)
	r, err := cri.NewRuntimeServiceClient(s.node.Dial(s.t)).ContainerStatus(s.t.Context(), &cri.ContainerStatusRequest{ContainerId: id})
	require.NoError(s.t, err)
	return time.Unix(0, r.GetStatus().GetFinishedAt())
}

// measureStop measures how long this machine takes to stop a container of such a pod.
func (s *pressureEnv) measureStop() {
	s.t.Helper()
	s.pods.Put(hungry("stopped", s.node.Busybox, "16Mi", "echo x > /scratch/x; "+quietPeriod))
	s.running("stopped")
	_, id, ok := strings.Cut(s.status("stopped").ContainerStatuses[0].ContainerID, "://")
	require.True(s.t, ok)
	rt := cri.NewRuntimeServiceClient(s.node.Dial(s.t))
	// A shell that has not set its trap yet ignores the signal: it is the first process of its namespace.
	require.Eventually(s.t, func() bool {
		r, err := rt.ExecSync(s.t.Context(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"test", "-e", "/scratch/x"}, Timeout: int64(longRunTime.Seconds())})
		return err == nil && r.GetExitCode() == 0
	}, longRunTime, 10*time.Millisecond)
	began := time.Now()
	_, err := rt.StopContainer(s.t.Context(), &cri.StopContainerRequest{ContainerId: id, Timeout: 60}) // it exits at once
	require.NoError(s.t, err)
	s.stopTime = time.Since(began)
	require.Eventually(s.t, func() bool { return s.status("stopped").Phase == corev1.PodSucceeded }, longRunTime, 10*time.Millisecond)
	require.True(s.t, s.pods.Delete("default", "stopped"))
}

func (s *pressureEnv) reports(kind corev1.NodeConditionType) bool {
	return slices.ContainsFunc(s.agent.Conditions(), func(c corev1.NodeCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

func hungry(name, image, request, script string) *corev1.Pod {
	p := new(corev1.Pod)
	p.Name, p.Namespace = name, "default"
	p.Spec.HostNetwork = true
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	p.Spec.Volumes = []corev1.Volume{
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
	}
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sh", "-c", "trap 'exit 0' TERM; " + script},
		VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}, {Name: "memory", MountPath: "/memory"}},
		Resources:    corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request)}},
	}}
	return p
}

// consume returns a script that runs a command a number of times, with a pause in
// microseconds after each, and then idles. It stays below the limits of the node, so
// that the pod is evicted and does not fail by itself when the agent is slow.
func consume(command string, times, pause int) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); %s\nusleep %d; done; %s", times, command, pause, quietPeriod)
}

// EV-5, EV-6, EV-8, EV-10 with an agent on a real containerd, where a cgroup limits the
// node: of three pods the growing one above its request is evicted, and no other, as soon
// as the kernel reports memory pressure. The same applies to the pod that fills the disk,
// uses its inodes, or forks indefinitely.
func TestEvictionOnContainerd(t *testing.T) {
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		const limit, threshold, tasks, free = 400 * mib, 150 * mib, 150, 60
		memory, pids := limitNode(t, n, limit, tasks)
		calm := func() []*corev1.Pod {
			return []*corev1.Pod{
				hungry("calm", n.Busybox, "50Mi", "echo x > /scratch/x; "+quietPeriod),
				hungry("modest", n.Busybox, "100Mi", "head -c 20000000 /dev/zero > /memory/x; head -c 4000000 /dev/zero > /scratch/x; "+quietPeriod),
			}
		}
		t.Run("memory", func(t *testing.T) {
			s := newPressureEnv(t, n, "memory.available<150Mi", calm()...)
			s.measureStop()
			s.requireEviction(consume("head -c 4000000 /dev/zero >> /memory/x", 80, 20000), "16Mi", eviction.MemoryAvailable, corev1.NodeMemoryPressure,
				// A runtime that is slow to tell the container's usage is not waited for.
				`^The node was low on resource: memory\. Threshold quantity: 150Mi, available: \S+\. `+
					`(Container main was using \S+, request is 16Mi, has larger consumption of memory\. )?$`,
				func() (int64, error) { return memoryLeft(memory, limit, threshold) })
			s.stop()
		})
		t.Run("disk, inodes and processes", func(t *testing.T) {
			s := newPressureEnv(t, n, "nodefs.available<50%,nodefs.inodesFree<2000,pid.available<60", calm()...)
			s.measureStop()
			s.requireEviction(consume("head -c 500000 /dev/zero > /scratch/$i", 90, 5000), "16Mi",
				eviction.NodeFSAvailable, corev1.NodeDiskPressure,
				`^The node was low on resource: ephemeral-storage\. Threshold quantity: 32Mi, available: \S+\. $`,
				func() (int64, error) {
					st, err := statfs(s.disk)
					return int64(st.Bavail*uint64(st.Bsize)) - 32*mib, err
				})
			s.requireEviction(consume("cd /scratch; touch $i-1 $i-2 $i-3 $i-4 $i-5 $i-6 $i-7 $i-8", 320, 5000), "16Mi",
				eviction.NodeFSInodesFree, corev1.NodeDiskPressure,
				`^The node was low on resource: inodes\. Threshold quantity: 2k, available: \S+\. $`,
				func() (int64, error) {
					st, err := statfs(s.disk)
					return int64(st.Ffree) - 2000, err
				})
			s.requireEviction(consume("sleep 1000 &", 110, 10000), "16Mi", eviction.PIDAvailable, corev1.NodePIDPressure,
				`^The node was low on resource: pids\. Threshold quantity: 60, available: \S+\. $`,
				func() (int64, error) {
					used, err := number(pids + "/pids.current")
					return tasks - used - free, err
				})
			s.stop()
		})
	})
}

// limitNode limits the cgroup that stands for the node, and returns its directories in the
// hierarchies of memory and pids.
func limitNode(t *testing.T, n *containerdtest.Node, limit, tasks int) (memory, pids string) {
	t.Helper()
	memory, pids = filepath.Join("/sys/fs/cgroup/memory", n.CgroupParent), filepath.Join("/sys/fs/cgroup/pids", n.CgroupParent)
	file := "memory.limit_in_bytes"
	if unifiedCgroups() {
		memory, pids, file = filepath.Join("/sys/fs/cgroup", n.CgroupParent), filepath.Join("/sys/fs/cgroup", n.CgroupParent), "memory.max"
	}
	if n.CgroupDriver == cgroup.Systemd {
		unit := filepath.Base(n.CgroupParent)
		for _, args := range [][]string{{"start", unit}, {"set-property", "--runtime", unit, fmt.Sprint("MemoryMax=", limit), fmt.Sprint("TasksMax=", tasks)}} {
			out, err := exec.Command("systemctl", args...).CombinedOutput()
			require.NoError(t, err, string(out))
		}
		t.Cleanup(func() { _ = exec.Command("systemctl", "revert", unit).Run() })
	}
	for file, value := range map[string]int{filepath.Join(memory, file): limit, pids + "/pids.max": tasks} {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(strconv.Itoa(value)), 0o600))
	}
	return memory, pids
}

// memoryLeft returns the available memory above the threshold, without the page cache.
func memoryLeft(group string, limit, threshold int64) (int64, error) {
	usage, inactive := "memory.usage_in_bytes", "total_inactive_file "
	if _, err := os.Stat(group + "/memory.current"); err == nil {
		usage, inactive = "memory.current", "\ninactive_file "
	}
	used, err := number(filepath.Join(group, usage))
	if err != nil {
		return 0, err
	}
	stat, err := os.ReadFile(group + "/memory.stat")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), inactive)
	cache, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(cache, 10, 64)
	return limit - (used - n) - threshold, err
}

func number(file string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

func statfs(path string) (st unix.Statfs_t, err error) {
	err = unix.Statfs(path, &st)
	return st, err
}
