//go:build linux

package cri

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// lab returns a Client of a real runtime: a containerd of the test's own, or the
// one named by SUBLET_TEST_CRI, which has
// the image SUBLET_TEST_IMAGE with a busybox in it.
func lab(t *testing.T) (*Client, string) {
	if os.Getenv("SUBLET_TEST_CRI") == "" {
		n := containerdtest.Start(t)
		t.Setenv("SUBLET_TEST_CRI", n.Endpoint())
		t.Setenv("SUBLET_TEST_IMAGE", n.Busybox)
	}
	c, err := New(mustDial(t), Config{Node: DetectNode(os.DirFS("/"))})
	require.NoError(t, err)
	_, err = c.Status(t.Context())
	require.NoError(t, err)
	return c, cmp.Or(os.Getenv("SUBLET_TEST_IMAGE"), "127.0.0.1:5000/lab/busybox:1")
}

func mustDial(t *testing.T) *grpc.ClientConn {
	cc, err := Dial(os.Getenv("SUBLET_TEST_CRI"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// labPod is a pod that is purged at the end of the test.
func labPod(t *testing.T, c *Client, name, image string, command ...string) (*corev1.Pod, runtime.RunOptions) {
	dir := t.TempDir()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "lab", UID: types.UID(fmt.Sprintf("%s-%d", name, time.Now().UnixNano())),
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image, Command: command}}},
	}
	podspec.Default(pod)
	m := runtime.RunOptions{
		Dir: dir, LogDir: filepath.Join(dir, "logs"), Hostname: name, NodeName: "edge-1", HostIPs: []string{"192.0.2.1"},
		CgroupParent: "/lab/" + string(pod.UID), Allocatable: corev1.ResourceList{"memory": resource.MustParse("8Gi")},
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		purge(ctx, t, c, pod.UID)
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			// A start that was cut off leaves its container's group behind.
			left, _ := filepath.Glob(root + "/lab/" + string(pod.UID) + "/*/")
			own, _ := filepath.Glob(root + "/lab/" + string(pod.UID))
			for _, dir := range append(left, own...) {
				_ = os.Remove(dir)
			}
		}
	})
	return pod, m
}

func purge(ctx context.Context, t *testing.T, c *Client, uid types.UID) {
	for range 2 {
		observed, err := c.Pod(ctx, uid)
		if !assert.NoError(t, err) {
			return
		}
		if observed.IsEmpty() {
			return
		}
		stand := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: observed.Namespace, Name: observed.Name}}
		assert.NoError(t, c.Kill(ctx, stand, observed, runtime.Termination{}))
		observed, err = c.Pod(ctx, uid)
		assert.NoError(t, err)
		assert.NoError(t, c.Remove(ctx, observed))
	}
}

// RT-11 as the processes of a container see it.
func TestLabTranslation(t *testing.T) {
	c, image := lab(t)
	pod, m := labPod(t, c, "translated", image, "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done")
	ct := &pod.Spec.Containers[0]
	ct.WorkingDir = "/tmp"
	ct.Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "$(A)2"}, {Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
	uid, gid, no, yes := int64(1000), int64(2000), false, true
	ct.SecurityContext = &corev1.SecurityContext{
		RunAsUser: &uid, RunAsGroup: &gid, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	pod.Spec.SecurityContext.SupplementalGroups = []int64{3000}
	pod.Spec.HostAliases = []corev1.HostAlias{{IP: "192.0.2.9", Hostnames: []string{"friend"}}}
	ct.Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("64Mi")}
	podspec.Default(pod)
	shared := filepath.Join(m.Dir, "shared")
	require.NoError(t, os.Mkdir(shared, 0o777))
	require.NoError(t, os.Chmod(shared, 0o777))
	m.Volumes = map[string]runtime.Volume{"data": {HostPath: shared}}
	ct.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "data", MountPath: "/ro", ReadOnly: true}}

	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), m).Failures)
	observed, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	require.Equal(t, runtime.Running, observed.Containers[0].State)
	ask := func(script string) string {
		out, code, err := c.Exec(t.Context(), observed.Containers[0].ID, []string{"sh", "-c", script}, time.Minute, 1<<16)
		require.NoError(t, err)
		return fmt.Sprintf("%d %s", code, strings.TrimSpace(string(out)))
	}
	assert.Equal(t, "0 1000 2000 2000 3000", ask("echo $(id -u) $(id -g) $(id -G)"))
	assert.Equal(t, "0 /tmp", ask("pwd"))
	assert.Equal(t, "0 12 "+observed.ReadySandbox().IPs[0], ask("echo $B $IP"))
	assert.Contains(t, ask("grep NoNewPrivs /proc/self/status"), "1")
	assert.Contains(t, ask("grep CapEff /proc/self/status"), "0000000000000000")
	assert.Contains(t, ask("touch /x 2>&1"), "Read-only")
	assert.Contains(t, ask("touch /ro/x 2>&1"), "Read-only")
	assert.Equal(t, "0", strings.TrimSpace(ask("touch /data/x")))
	assert.FileExists(t, filepath.Join(shared, "x"))
	assert.Contains(t, ask("cat /etc/hosts"), "192.0.2.9\tfriend")
	assert.Contains(t, ask("cat /etc/hosts"), "\ttranslated")
	assert.Equal(t, "0 translated", ask("hostname"))
	assert.Contains(t, ask("touch /proc/sys/kernel/domainname 2>&1"), "Read-only")
	assert.FileExists(t, filepath.Join(m.LogDir, "main", "0.log"))
	quota, err := filepath.Glob("/sys/fs/cgroup/cpu/lab/" + string(pod.UID) + "/*/cpu.cfs_quota_us")
	require.NoError(t, err)
	if len(quota) == 2 { // the sandbox's and the container's
		values := []string{}
		for _, q := range quota {
			text, err := os.ReadFile(q)
			require.NoError(t, err)
			values = append(values, strings.TrimSpace(string(text)))
		}
		assert.Contains(t, values, "50000")
	}
}

// RT-14 and RT-9: last words by both policies, the exit code, the stop signal.
func TestLabLastWords(t *testing.T) {
	c, image := lab(t)
	pod, m := labPod(t, c, "words", image, "sh", "-c", "echo by file > /dev/termination-log; exit 3")
	second := pod.Spec.Containers[0]
	second.Name, second.Command = "other", []string{"sh", "-c", "echo by log; exit 4"}
	second.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	pod.Spec.Containers = append(pod.Spec.Containers, second)
	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), m).Failures)
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		observed, err := c.Pod(context.Background(), pod.UID)
		require.NoError(t, err)
		main, other := observed.LatestContainer("main"), observed.LatestContainer("other")
		require.Equal(t, runtime.Exited, main.State)
		require.Equal(t, runtime.Exited, other.State)
		assert.Equal(t, int32(3), main.ExitCode)
		assert.Equal(t, "by file\n", main.Message)
		assert.Equal(t, int32(4), other.ExitCode)
		assert.Equal(t, "by log\n", other.Message)
	}, time.Minute, 50*time.Millisecond)
}

// Thirty pods at once, against the same raw calls at their best; the rounds
// alternate, since nothing else compares on a machine that others use too.
func TestLabThirtyAtOnce(t *testing.T) {
	if os.Getenv("SUBLET_TEST_SLOW") == "" {
		t.Skip("SUBLET_TEST_SLOW is not set")
	}
	c, image := lab(t)
	const n = 30
	rawUp, rawDown := map[int][]float64{}, map[int][]float64{}
	var up, down, ratios []float64
	for round := range 3 {
		for _, atOnce := range []int{3, 4, 6, 8} {
			u, d := rawRates(t, c, image, n, atOnce)
			rawUp[atOnce], rawDown[atOnce] = append(rawUp[atOnce], u), append(rawDown[atOnce], d)
		}
		u, d, ratio := agentRates(t, c, image, n)
		up, down, ratios = append(up, u), append(down, d), append(ratios, ratio)
		t.Logf("round %d: raw up %.1f down %.1f by how many at once, agent up %.1f down %.1f a second, median pod at %.2f of the last", round, last(rawUp), last(rawDown), u, d, ratio)
	}
	bestUp, bestDown := 0.0, 0.0
	for atOnce := range rawUp {
		bestUp, bestDown = max(bestUp, middle(rawUp[atOnce])), max(bestDown, middle(rawDown[atOnce]))
	}
	t.Logf("agent of raw: up %.2f, down %.2f; median pod at %.2f of the last", middle(up)/bestUp, middle(down)/bestDown, middle(ratios))
	assert.GreaterOrEqual(t, middle(up)/bestUp, 0.9)
	assert.GreaterOrEqual(t, middle(down)/bestDown, 0.9)
	assert.LessOrEqual(t, middle(ratios), 0.6)
}

func middle(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// each calls do for all pods, at most atOnce at a time, and returns when each
// was done.
func each(n, atOnce int, do func(i int)) []time.Duration {
	slots := make(chan struct{}, atOnce)
	took := make([]time.Duration, n)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range n {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			do(i)
			took[i] = time.Since(began)
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took
}

func agentRates(t *testing.T, c *Client, image string, n int) (up, down, ratio float64) {
	pods, options := make([]*corev1.Pod, n), make([]runtime.RunOptions, n)
	for i := range n {
		pods[i], options[i] = labPod(t, c, fmt.Sprintf("crowd-%d", i), image, "sh", "-c", "trap exit TERM; sleep 1000 & wait")
	}
	took := each(n, n, func(i int) {
		assert.Empty(t, c.Apply(t.Context(), pods[i], startAll(pods[i]), options[i]).Failures)
	})
	deleted := each(n, n, func(i int) {
		observed, err := c.Pod(t.Context(), pods[i].UID)
		assert.NoError(t, err)
		assert.NoError(t, c.Kill(t.Context(), pods[i], observed, runtime.Termination{GracePeriod: 10 * time.Second}))
		observed, err = c.Pod(t.Context(), pods[i].UID)
		assert.NoError(t, err)
		assert.NoError(t, c.Remove(t.Context(), observed))
	})
	return float64(n) / took[n-1].Seconds(), float64(n) / deleted[n-1].Seconds(), took[n/2].Seconds() / took[n-1].Seconds()
}

// rawRates starts and removes pods with nothing but the calls that it takes.
func rawRates(t *testing.T, c *Client, image string, n, atOnce int) (up, down float64) {
	pods, options := make([]*corev1.Pod, n), make([]runtime.RunOptions, n)
	for i := range n {
		pods[i], options[i] = labPod(t, c, fmt.Sprintf("raw-%d-%d", atOnce, i), image, "sh", "-c", "trap exit TERM; sleep 1000 & wait")
	}
	id, err := c.imageStatus(t.Context(), image, "")
	require.NoError(t, err)
	sandboxes, containers := make([]string, n), make([]string, n)
	took := each(n, atOnce, func(i int) {
		tr := &translate.Translator{Node: c.cfg.Node.translated(), Pod: pods[i], Options: options[i], Owner: c.owner()}
		config, err := tr.Sandbox(0)
		assert.NoError(t, err)
		sb, err := c.rs.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: config})
		assert.NoError(t, err)
		cfg, err := tr.Container(translate.ContainerInput{Spec: &pods[i].Spec.Containers[0], Image: id})
		assert.NoError(t, err)
		ct, err := c.rs.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: sb.GetPodSandboxId(), Config: cfg, SandboxConfig: config})
		assert.NoError(t, err)
		_, err = c.rs.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: ct.GetContainerId()})
		assert.NoError(t, err)
		sandboxes[i], containers[i] = sb.GetPodSandboxId(), ct.GetContainerId()
	})
	deleted := each(n, atOnce, func(i int) {
		_, err := c.rs.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: containers[i], Timeout: 10})
		assert.NoError(t, err)
		_, err = c.rs.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: sandboxes[i]})
		assert.NoError(t, err)
		_, err = c.rs.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: sandboxes[i]})
		assert.NoError(t, err)
	})
	return float64(n) / took[n-1].Seconds(), float64(n) / deleted[n-1].Seconds()
}

func last(all map[int][]float64) []float64 {
	var out []float64
	for _, atOnce := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[atOnce][len(all[atOnce])-1])
	}
	return out
}

// RT-17 on a real runtime: turns that are cut off anywhere, then one that is
// not. In the end one sandbox is ready and one container runs, from the plan
// alone.
func TestApply_CancelledOnContainerd(t *testing.T) {
	c, image := lab(t)
	for i := range 8 {
		pod, m := labPod(t, c, fmt.Sprintf("cut-%d", i), image, "sleep", "1000")
		for try := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(10+17*i+40*try)*time.Millisecond)
			syncOnce(ctx, t, c, pod, m)
			cancel()
		}
		require.EventuallyWithT(t, func(ct *assert.CollectT) {
			syncOnce(context.Background(), t, c, pod, m)
			observed, err := c.Pod(context.Background(), pod.UID)
			require.NoError(ct, err)
			running, ready := 0, 0
			for _, k := range observed.Containers {
				if k.State == runtime.Running {
					running++
				}
			}
			for _, s := range observed.Sandboxes {
				if s.State == runtime.SandboxReady {
					ready++
				}
			}
			assert.Equal(ct, 1, running)
			assert.Equal(ct, 1, ready)
		}, 3*time.Minute, 200*time.Millisecond)
	}
}

func syncOnce(ctx context.Context, t *testing.T, c *Client, pod *corev1.Pod, m runtime.RunOptions) {
	observed, err := c.Pod(context.Background(), pod.UID)
	require.NoError(t, err)
	applied := c.Apply(ctx, pod, runtime.Plan(pod, runtime.PlanInput{Pod: observed}, time.Now()), m)
	for name, f := range applied.Failures {
		t.Logf("%q: %s: %s", name, f.Reason, f.Message)
	}
}

// sideBySide lets none of two calls through before both are under way.
type sideBySide struct {
	grpc.ClientConnInterface
	begun map[string]chan struct{} // by method; closed by its call
}

func (s sideBySide) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	if own, ok := s.begun[path.Base(method)]; ok {
		select {
		case <-own: // another attempt
		default:
			close(own)
		}
		for other, begun := range s.begun {
			select {
			case <-begun:
			case <-time.After(time.Minute):
				return fmt.Errorf("%s waited for %s", method, other)
			}
		}
	}
	return s.ClientConnInterface.Invoke(ctx, method, req, resp, opts...)
}

// A start whose image must be fetched: the pull runs while the sandbox is made. RT-16
func TestLabPullBesideSandbox(t *testing.T) {
	c, image := lab(t)
	pod, m := labPod(t, c, "pulled", image, "sleep", "1000")
	pod.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
	calls := sideBySide{mustDial(t), map[string]chan struct{}{"PullImage": make(chan struct{}), "RunPodSandbox": make(chan struct{})}}
	waiting, err := New(calls, Config{})
	require.NoError(t, err)
	require.Empty(t, waiting.Apply(t.Context(), pod, startAll(pod), m).Failures)
	for method, begun := range calls.begun {
		select {
		case <-begun:
		default:
			t.Errorf("%s was not called", method)
		}
	}
}
