//go:build linux

package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/syncloop"
)

// sharingTime is how long agents share a runtime: seconds, or what
// SUBLET_SHARING_TIME says, as 5m.
func sharingTime(t *testing.T) time.Duration {
	text := os.Getenv("SUBLET_SHARING_TIME")
	if text == "" {
		if testing.Short() {
			t.Skip("starts containerd")
		}
		return 8 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// OW-1, AG-6: two agents and pods of a kubelet share a containerd, a log directory
// and a cgroup, while pods come and go and all unused resources are collected.
// None sees, inspects, changes or removes anything of another.
func TestAgentsShareARuntime(t *testing.T) {
	d := sharingTime(t)
	containerdtest.Stress(t, func(t *testing.T, n *containerdtest.Node) {
		f := newForeign(t, n)
		before := f.state(t)
		tenants := []*tenant{newTenant(n, "one"), newTenant(n, "two")}
		ids := map[string]string{}
		for range 2 { // the second time they find what the first ones left running
			for _, x := range tenants {
				x.start(t)
			}
			for _, x := range tenants {
				x.settled(t)
			}
			now := f.containersOf(t, "one-stays", "two-stays")
			if len(ids) == 0 {
				ids = now
			}
			require.Equal(t, ids, now, "pods of a former process run on")
			for end := time.Now().Add(d / 2); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
				for _, x := range tenants {
					x.churn(t)
				}
				require.Equal(t, before, f.state(t))
			}
			for _, x := range tenants {
				x.source.Set(x.pods()...)
				x.settled(t)
				x.stop()
			}
		}
		require.Equal(t, ids, f.containersOf(t, "one-stays", "two-stays"), "pods that are wanted all the time run all the time")
		require.Equal(t, before, f.state(t))
	})
}

// foreign is what a kubelet has on the node.
type foreign struct {
	node   *containerdtest.Node
	rt     cri.RuntimeServiceClient
	images cri.ImageServiceClient
	logs   string
	image  string
}

func sharedLogs(n *containerdtest.Node) string { return filepath.Join(n.Shared, "logs") }

// newForeign makes a pod that runs, with a container that has ended in it, a
// sandbox that was stopped, and the logs of a pod that is no more.
func newForeign(t *testing.T, n *containerdtest.Node) *foreign {
	t.Helper()
	cc := n.Dial(t)
	f := &foreign{node: n, rt: cri.NewRuntimeServiceClient(cc), images: cri.NewImageServiceClient(cc), logs: sharedLogs(n)}
	f.image = n.PushBusybox(t, "test/kubelet", "1", containerdtest.File{Name: "kubelet", Data: []byte("x"), Mode: 0o644})
	_, err := f.images.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: f.image}})
	require.NoError(t, err)
	config, sb := f.sandbox(t, "coredns")
	f.container(t, config, sb, "main", "while :; do date; sleep 1; done")
	f.container(t, config, sb, "ended", "exit 3")
	_, stopped := f.sandbox(t, "stopped")
	_, err = f.rt.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: stopped})
	require.NoError(t, err)
	dir := filepath.Join(f.logs, "kube-system_gone_11111111-1111-1111-1111-111111111111", "main")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "0.log"), []byte("a line\n"), 0o600))
	require.Eventually(t, func() bool { return strings.Contains(strings.Join(f.state(t), "\n"), "ended CONTAINER_EXITED") }, longRunTime, tick)
	return f
}

func (f *foreign) sandbox(t *testing.T, name string) (*cri.PodSandboxConfig, string) {
	t.Helper()
	uid := "22222222-2222-2222-2222-" + name
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "kube-system", Uid: uid},
		Labels:       map[string]string{runtime.LabelPodName: name, runtime.LabelPodNamespace: "kube-system", runtime.LabelPodUID: uid},
		Annotations:  map[string]string{"kubernetes.io/config.source": "api", "kubernetes.io/config.seen": "2026-01-01T00:00:00Z"},
		LogDirectory: filepath.Join(f.logs, "kube-system_"+name+"_"+uid),
		Linux:        &cri.LinuxPodSandboxConfig{CgroupParent: f.node.CgroupParent + "/kubepods/burstable/pod" + uid},
	}
	made, err := f.rt.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
	require.NoError(t, err)
	return config, made.GetPodSandboxId()
}

func (f *foreign) container(t *testing.T, config *cri.PodSandboxConfig, sandbox, name, script string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(config.GetLogDirectory(), name), 0o755))
	labels := maps.Clone(config.GetLabels())
	labels[runtime.LabelContainerName] = name
	made, err := f.rt.CreateContainer(t.Context(), &cri.CreateContainerRequest{
		PodSandboxId: sandbox, SandboxConfig: config, Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: f.image}, Labels: labels,
			Annotations: map[string]string{runtime.AnnotationHash: "5b4c2d7e"}, LogPath: name + "/0.log", Command: []string{"sh", "-c", script},
		},
	})
	require.NoError(t, err)
	_, err = f.rt.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: made.GetContainerId()})
	require.NoError(t, err)
}

// state is all that must stay as it is, in lines.
func (f *foreign) state(t *testing.T) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longRunTime)
	defer cancel()
	var out []string
	sandboxes, err := f.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	require.NoError(t, err)
	for _, s := range sandboxes.GetItems() {
		if s.GetMetadata().GetNamespace() == "kube-system" {
			out = append(out, fmt.Sprint("sandbox ", s.GetId(), s.GetMetadata().GetName(), s.GetState()))
		}
	}
	containers, err := f.rt.ListContainers(ctx, &cri.ListContainersRequest{})
	require.NoError(t, err)
	for _, c := range containers.GetContainers() {
		if c.GetLabels()[runtime.LabelPodNamespace] == "kube-system" {
			out = append(out, fmt.Sprint("container ", c.GetId(), " ", c.GetMetadata().GetName(), " ", c.GetState()))
		}
	}
	image, err := f.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: f.image}})
	require.NoError(t, err)
	out = append(out, "image "+image.GetImage().GetId())
	logs, err := filepath.Glob(filepath.Join(f.logs, "kube-system_*", "*", "*"))
	require.NoError(t, err)
	out = append(out, logs...)
	for _, dir := range f.node.Cgroups() {
		if strings.Contains(dir, "22222222") {
			out = append(out, dir)
		}
	}
	slices.Sort(out)
	return out
}

// containersOf returns the containers that run, by pod.
func (f *foreign) containersOf(t *testing.T, pods ...string) map[string]string {
	t.Helper()
	list, err := f.rt.ListContainers(t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
	}})
	require.NoError(t, err)
	out := map[string]string{}
	for _, c := range list.GetContainers() {
		if name := c.GetLabels()[runtime.LabelPodName]; slices.Contains(pods, name) {
			out[name] = c.GetId()
		}
	}
	return out
}

// tenant is an agent that is not alone on the node.
type tenant struct {
	node   *containerdtest.Node
	name   string
	source *podsource.Memory
	agent  *agent.Agent
	stop   func()
	round  int

	mu       sync.Mutex
	strange  map[string]bool // what of others it had to do with
	messages strings.Builder
}

func newTenant(n *containerdtest.Node, name string) *tenant {
	return &tenant{node: n, name: name, strange: map[string]bool{}}
}

func (x *tenant) start(t *testing.T) {
	t.Helper()
	x.source = podsource.NewMemory(x.pods()...)
	var err error
	x.agent, err = agent.New(
		agent.WithRuntimeEndpoint(x.node.Endpoint()), agent.WithNodeName(nodeName), agent.WithSource("memory", x.source),
		agent.WithRootDir(filepath.Join(x.node.Shared, x.name)),
		agent.WithNode(node.Config{IPs: []string{nodeIP}, CgroupRoot: x.node.CgroupParent, PodLogsDir: sharedLogs(x.node)}),
		// Removes all unused images, except those that the other has just pulled.
		agent.WithConfig(imagegc.Config{Policy: imagegc.Policy{HighThresholdPercent: 2, LowThresholdPercent: 1, MinAge: 5 * time.Second}, Period: time.Second}),
		agent.WithConfig(podsync.Config{BackOff: runtime.ExponentialBackOff{Base: 100 * time.Millisecond, Max: time.Second}}),
		agent.WithLogger(slog.New(slog.NewTextHandler(x, nil))),
		agent.WithHooks(agent.Hooks{
			PLEG: pleg.Hooks{
				Inspected:            func(uid types.UID, _, _ time.Duration, _ error) { x.touched("inspected", uid) },
				RuntimeEventReceived: func(uid types.UID) { x.touched("hinted", uid) },
			},
			Housekeeper: syncloop.HousekeeperHooks{OrphanFound: func(p runtime.Pod) { x.touched("ended", p.UID) }},
		}),
	)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- x.agent.Run(ctx) }()
	x.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended)
		x.mu.Lock()
		defer x.mu.Unlock()
		assert.Empty(t, x.strange)
		if !t.Failed() {
			return
		}
		for line := range strings.Lines(x.messages.String()) {
			if !strings.Contains(line, x.name+"-crashes") { // nearly all of the log
				t.Logf("agent %s: %s", x.name, line)
			}
		}
	})
	t.Cleanup(x.stop)
}

// Write takes what the agent logs.
func (x *tenant) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.messages.Write(b)
}

func (x *tenant) touched(what string, uid types.UID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !strings.HasPrefix(string(uid), "uid-"+x.name) {
		x.strange[what+" "+string(uid)] = true
	}
}

// pods are those that it has all the time: one that runs and one that keeps ending.
func (x *tenant) pods() []*corev1.Pod {
	return []*corev1.Pod{x.pod("stays", "trap 'exit 0' TERM; sleep 3600 & wait"), x.pod("crashes", "exit 1")}
}

func (x *tenant) pod(name, script string) *corev1.Pod {
	p := new(corev1.Pod)
	p.Name, p.Namespace = x.name+"-"+name, "default"
	p.UID = types.UID("uid-" + p.Name)
	p.Spec.HostNetwork = true
	p.Spec.TerminationGracePeriodSeconds = new(int64)
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Image: x.node.Busybox, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sh", "-c", script},
	}}
	return p
}

// churn has some pods go and others come, and looks at what the agent tells.
func (x *tenant) churn(t *testing.T) {
	t.Helper()
	x.round++
	x.source.Set(append(x.pods(), x.pod("p"+strconv.Itoa(x.round/4), "sleep 3600"), x.pod("q"+strconv.Itoa(x.round/6), "exit 0"))...)
	for _, p := range x.agent.Pods() {
		x.touched("reported", p.UID)
	}
	if s, err := x.agent.Stats(t.Context()); err == nil { // not before the runtime is connected to
		for _, p := range s.Pods {
			x.touched("measured", types.UID(p.PodRef.UID))
		}
	}
}

// settled waits until exactly what stays is there, and runs.
func (x *tenant) settled(t *testing.T) {
	t.Helper()
	ok := assert.Eventually(t, func() bool {
		pods := x.agent.Pods()
		if x.agent.Healthy() != nil || len(pods) != len(x.pods()) {
			return false
		}
		return slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
			return p.Name == x.name+"-stays" && p.Status.Phase == corev1.PodRunning
		})
	}, longRunTime, tick)
	if !ok {
		t.Logf("agent %s: healthy: %v", x.name, x.agent.Healthy())
		for _, p := range x.agent.Pods() {
			t.Logf("pod %s: deleted %v, %+v", p.Name, p.DeletionTimestamp, p.Status)
		}
		t.FailNow()
	}
}
