package eviction_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/stats"
)

// realPods are pods of a containerd in cgroups of ours.
type realPods struct {
	client *cri.Client
	groups *cgroup.Manager

	mu     sync.Mutex
	pods   []*corev1.Pod
	asked  time.Time // when the eviction was asked for
	gone   time.Time
	ending runtime.Ending
	names  []string
}

func (r *realPods) Active() []*corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*corev1.Pod(nil), r.pods...)
}

func (r *realPods) Evict(ctx context.Context, pod *corev1.Pod, e runtime.Ending) error {
	r.mu.Lock()
	r.asked, r.ending, r.names = time.Now(), e, append(r.names, pod.Name)
	r.mu.Unlock()
	seen, err := r.client.Pod(ctx, pod.UID)
	if err != nil {
		return err
	}
	if err := r.client.Kill(ctx, pod, seen, e); err != nil {
		return err
	}
	if err := r.groups.Remove(ctx, pod.UID); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods, r.gone = without(r.pods, pod.UID), time.Now()
	return nil
}

func (r *realPods) start(t *testing.T, image, name, request, script string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "lab", UID: types.UID(name + "-" + strconv.FormatInt(time.Now().UnixNano(), 36))},
		Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{
			Name: "main", Image: image, Command: []string{"sh", "-c", script},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request)}},
		}}},
	}
	podspec.Default(pod)
	parent, err := r.groups.Ensure(t.Context(), pod)
	require.NoError(t, err)
	dir := t.TempDir()
	m := runtime.Materials{Dir: dir, LogDir: filepath.Join(dir, "logs"), CgroupParent: parent}
	plan := []runtime.Action{{Verb: runtime.CreateSandbox}, {Verb: runtime.StartContainer, Container: "main"}}
	require.Empty(t, r.client.Apply(t.Context(), pod, plan, m).Failures)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods = append(r.pods, pod)
}

// EV-5, EV-6, EV-10 on a real containerd, with a memory cgroup as the node's
// bound: of three pods the one above its request goes, as soon as the kernel
// tells of the crossing, and the message says what it used.
func TestContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a containerd and some seconds")
	}
	n := containerdtest.Start(t)
	bound := filepath.Join(cgroupRoot, "memory", n.CgroupParent)
	if _, err := os.Stat(cgroupRoot + "/memory/cgroup.event_control"); err != nil {
		t.Skip("needs cgroup v1")
	}
	require.NoError(t, os.MkdirAll(bound, 0o755))
	const limit, threshold = 400 << 20, 150 << 20
	require.NoError(t, os.WriteFile(bound+"/memory.limit_in_bytes", []byte(strconv.Itoa(limit)), 0o600))

	client, err := cri.New(n.Dial(t), cri.Config{})
	require.NoError(t, err)
	groups, err := cgroup.New(cgroup.Config{Parent: n.CgroupParent})
	require.NoError(t, err)
	pods := &realPods{client: client, groups: groups}
	node, err := stats.New(stats.Config{
		Bound: n.CgroupParent, AllPods: groups.AllPods(), Containers: client,
		Pods: func() (out []stats.Pod) {
			for _, p := range pods.Active() {
				out = append(out, stats.Pod{Pod: p, Cgroup: groups.Group(p)})
			}
			return out
		},
	})
	require.NoError(t, err)
	notice, err := eviction.NewUsageNotice(bound, eviction.MemoryAvailable)
	require.NoError(t, err)
	m, err := eviction.New(eviction.Config{
		Node: node, Pods: pods, Hard: "memory.available<150Mi", Poll: time.Hour, Notices: []eviction.Notice{notice},
	})
	require.NoError(t, err)

	const still = "while :; do sleep 0.1; done"
	pods.start(t, n.Busybox, "calm", "50Mi", still)
	pods.start(t, n.Busybox, "modest", "100Mi", hold("20000000")+still)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	crossed := make(chan time.Time, 1)
	go watchUsage(ctx, bound, limit-threshold, crossed)
	pods.start(t, n.Busybox, "greedy", "16Mi", hold("1000000")+"y=; while :; do y=$y$x; sleep 0.005; done")

	require.Eventually(t, func() bool { return len(pods.Active()) < 3 }, 60*time.Second, 5*time.Millisecond)
	time.Sleep(300 * time.Millisecond)
	pods.mu.Lock()
	defer pods.mu.Unlock()
	assert.Equal(t, []string{"greedy"}, pods.names)
	at := <-crossed
	t.Logf("asked %v after the crossing, gone %v later", pods.asked.Sub(at), pods.gone.Sub(pods.asked))
	// The next poll is an hour away, so it was the kernel's notice. How fast it was
	// stands in the log: beside other tests, a bound of 200 ms would measure them.
	assert.Less(t, pods.asked.Sub(at), 2*time.Second)
	assert.Regexp(t, `^The node was low on resource: memory\. Threshold quantity: 150Mi, available: \S+\. `+
		`Container main was using \S+, request is 16Mi, has larger consumption of memory\. $`, pods.ending.Message)
	cancel()
	require.NoError(t, <-done)
}

// hold is a script that fills the variable x with so many bytes.
func hold(bytes string) string { return "x=$(head -c " + bytes + " /dev/zero | tr '\\0' x); " }

// watchUsage is an eye of our own: it tells when the group's usage, cache left
// out, is above a figure.
func watchUsage(ctx context.Context, folder string, above uint64, crossed chan<- time.Time) {
	number := func(s string) uint64 {
		n, _ := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
		return n
	}
	for ctx.Err() == nil {
		usage, err1 := os.ReadFile(folder + "/memory.usage_in_bytes")
		stat, err2 := os.ReadFile(folder + "/memory.stat")
		_, rest, _ := strings.Cut(string(stat), "total_inactive_file ")
		cache, _, _ := strings.Cut(rest, "\n")
		if err1 == nil && err2 == nil && number(string(usage)) > above+number(cache) {
			crossed <- time.Now()
			return
		}
		time.Sleep(time.Millisecond)
	}
	crossed <- time.Now()
}
