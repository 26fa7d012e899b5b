package agent_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

func resources(list ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, entry := range list {
		name, value, _ := strings.Cut(entry, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return out
}

// AG-8
func TestNew_RejectsContradictoryNodeSettings(t *testing.T) {
	endpoint := agent.WithRuntimeEndpoint("unix:///x.sock")
	for want, opts := range map[string][]agent.Option{
		"node: PodPidsLimit -1 is negative":                             {agent.WithNode(node.Config{PodPidsLimit: -1})},
		"WithNode: the runtime is no runtime.ContainerRemover":          {agent.WithNode(node.Config{LogLinksDir: "/links"}), agent.WithRuntime(bare{new(cri.Client)}), agent.WithRootDir("/nowhere")},
		"admission: Config.Taints: key required":                        {agent.WithNode(node.Config{Taints: []corev1.Taint{{}}}), agent.WithSimulatedRuntime()},
		"cri: Node.CPUQuotaPeriod must be from 1ms to 1s, not 2s":       {endpoint, agent.WithConfig(cri.Config{Node: cri.Node{CPUQuotaPeriod: 2 * time.Second}})},
		"WithConfig(cri.Config): set twice":                             {endpoint, agent.WithConfig(cri.Config{}), agent.WithConfig(cri.Config{})},
		"no effect of WithConfig(cri.Config)":                           {agent.WithRuntime(new(cri.Client)), agent.WithRootDir("/nowhere"), agent.WithConfig(cri.Config{})},
		"WithObjects: nil":                                              {agent.WithObjects(nil)},
		"eviction: Config.PodCleanupTimeout: must not be negative: -1s": {agent.WithConfig(eviction.Config{PodCleanupTimeout: -time.Second})},
		"eviction.Config.NodeName: the agent sets it; remove it":        {agent.WithSimulatedRuntime(), agent.WithConfig(eviction.Config{NodeName: "other"})},
	} {
		_, err := agent.New(append(opts, agent.WithNodeName("node"))...)
		assert.ErrorContains(t, err, want)
	}
}

// runSimulated runs an agent in a bubble for a minute, with a source that is made in
// it, and returns the statuses that it sent.
func runSimulated(t *testing.T, during func(a *agent.Agent), source func() podsource.Source, opts ...agent.Option) *agenttest.Statuses {
	t.Helper()
	var statuses agenttest.Statuses
	synctest.Test(t, func(t *testing.T) {
		a, err := agent.New(append(opts, agent.WithNodeName("node"), agent.WithSimulatedRuntime(), agent.WithStatusSink(&statuses), agent.WithSource("memory", source()))...)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if during != nil {
			during(a)
		}
		cancel()
		require.NoError(t, <-done)
	})
	return &statuses
}

func TestWithNode_Taints(t *testing.T) {
	node := agent.WithNode(node.Config{DisableCgroups: true, Taints: []corev1.Taint{{Key: "broken", Effect: corev1.TaintEffectNoExecute}}})
	static := func() podsource.Source { return podsource.NewMemory(agenttest.Pod("web")) }
	assert.Equal(t, corev1.PodRunning, runSimulated(t, nil, static, node).Of("web").Phase)
	other := func() podsource.Source { return podsource.NotStatic(static()) }
	assert.Equal(t, "TaintToleration", runSimulated(t, nil, other, node).Of("web").Reason)
}

func TestWithNode_UnsupportedFields(t *testing.T) {
	exotic := agenttest.Pod("exotic")
	exotic.Spec.HostIPC = true
	statuses := runSimulated(t, nil,
		func() podsource.Source {
			return podsource.NewMemory(exotic, agenttest.Pod("plain"), agenttest.Pod("panics"))
		},
		agent.WithNode(node.Config{DisableCgroups: true, UnsupportedFields: func(pod *corev1.Pod) field.ErrorList {
			switch {
			case pod.Name == "panics":
				panic("unsupported")
			case pod.Spec.HostIPC:
				return field.ErrorList{field.Forbidden(field.NewPath("spec", "hostIPC"), "is not for this node")}
			}
			return nil
		}}),
	)
	assert.Equal(t, "PodFeatureUnsupported", statuses.Of("exotic").Reason)
	assert.Contains(t, statuses.Of("exotic").Message, "spec.hostIPC is not for this node")
	assert.Equal(t, corev1.PodRunning, statuses.Of("plain").Phase)
	assert.Equal(t, "UnexpectedAdmissionError", statuses.Of("panics").Reason)
}

// objectsFunc is a place of objects.
type objectsFunc func(ref podspec.Ref) (podspec.Object, error)

func (f objectsFunc) Object(_ context.Context, ref podspec.Ref) (podspec.Object, error) {
	return f(ref)
}

func TestWithObjects_FindsWhatNoSourceHas(t *testing.T) {
	ref := func(name string) podspec.Ref {
		return podspec.Ref{Kind: podspec.ConfigMap, Namespace: "default", Name: name}
	}
	object := func(name, value string) podspec.Object {
		return podspec.Object{Ref: ref(name), Data: map[string][]byte{"key": []byte(value)}, Version: value}
	}
	source := func() podsource.Source {
		m := podsource.NewMemory()
		m.SetObjects(object("both", "source"))
		for _, name := range []string{"second", "absent", "broken"} {
			pod := agenttest.Pod(name)
			pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
			m.Put(pod)
		}
		return m
	}
	notFound := func(ref podspec.Ref) error { return fmt.Errorf("%s: %w", ref.Name, podspec.ErrObjectNotFound) }
	statuses := runSimulated(t,
		func(a *agent.Agent) {
			for name, want := range map[string]string{"both": "source", "first": "first", "second": "second"} {
				o, err := a.Components().Objects.Object(t.Context(), ref(name))
				assert.NoError(t, err)
				assert.Equal(t, want, string(o.Data["key"]), name)
			}
			_, err := a.Components().Objects.Object(t.Context(), ref("absent"))
			assert.ErrorIs(t, err, podspec.ErrObjectNotFound)
			_, err = a.Components().Objects.Object(t.Context(), ref("broken"))
			assert.EqualError(t, err, "API server unavailable", "a place that cannot answer ends the search")
		},
		source, agent.WithNode(node.Config{DisableCgroups: true}),
		agent.WithObjects(objectsFunc(func(ref podspec.Ref) (podspec.Object, error) {
			switch ref.Name {
			case "first", "both":
				return object(ref.Name, "first"), nil
			case "broken":
				return podspec.Object{}, fmt.Errorf("API server unavailable")
			}
			return podspec.Object{}, notFound(ref)
		})),
		agent.WithObjects(objectsFunc(func(ref podspec.Ref) (podspec.Object, error) {
			if ref.Name == "absent" {
				return podspec.Object{}, notFound(ref)
			}
			return object(ref.Name, "second"), nil
		})),
	)
	assert.Equal(t, corev1.PodRunning, statuses.Of("second").Phase)
	assert.Equal(t, corev1.PodPending, statuses.Of("absent").Phase)
	assert.Equal(t, corev1.PodPending, statuses.Of("broken").Phase)
}

// slowKill is a runtime in which a pod does not end.
type slowKill struct{ *cri.Client }

func (slowKill) Kill(ctx context.Context, _ *corev1.Pod, _ runtime.Pod, _ runtime.Termination) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestWithEviction_PodCleanupTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
		require.NoError(t, err)
		cc, err := rt.Dial()
		require.NoError(t, err)
		client, err := cri.New(cc, cri.Config{})
		require.NoError(t, err)
		var mu sync.Mutex
		var waited []time.Duration // guarded by mu
		a, err := agent.New(
			agent.WithNodeName("node"), agent.WithRootDir(t.TempDir()), agent.WithNode(node.Config{DisableCgroups: true}),
			agent.WithRuntime(slowKill{client}),
			agent.WithSource("cloud", podsource.NotStatic(podsource.NewMemory(agenttest.SizedPod("greedy", "1Mi", "0s=1000Mi")))),
			agent.WithConfig(eviction.Config{Thresholds: hardThresholds("memory.available<100Mi"), Usage: &agenttest.Node{Client: client}, PodCleanupTimeout: 7 * time.Second}),
			agent.WithHooks(agent.Hooks{Eviction: eviction.Hooks{Evicted: func(_ eviction.Signal, _ *corev1.Pod, duration time.Duration, _ error) {
				mu.Lock()
				defer mu.Unlock()
				waited = append(waited, duration)
			}}}),
		)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(time.Minute)
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, cc.Close())
		require.NoError(t, rt.Close())
		require.NotEmpty(t, waited)
		require.Equal(t, 7*time.Second, waited[0])
	})
}

// serveEmbedded serves a simulated runtime on a socket. created gets the requests
// to create containers.
func serveEmbedded(t *testing.T, created func(*criv1.CreateContainerRequest)) (endpoint string) {
	t.Helper()
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{}), Grace: -1})
	require.NoError(t, err)
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if r, ok := req.(*criv1.CreateContainerRequest); ok {
			created(r)
		}
		return handler(ctx, req)
	}))
	rt.Register(s)
	dir, err := os.MkdirTemp("", "cri") //nolint:usetesting // t.TempDir is too long for a socket
	require.NoError(t, err)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	t.Cleanup(func() {
		s.Stop()
		assert.NoError(t, <-served)
		assert.NoError(t, rt.Close())
		assert.NoError(t, os.RemoveAll(dir))
	})
	return "unix://" + filepath.Join(dir, "s")
}

func TestWithConfig_CRINodeReachesTheRuntime(t *testing.T) {
	requests := make(chan *criv1.CreateContainerRequest, 10)
	endpoint := serveEmbedded(t, func(r *criv1.CreateContainerRequest) { requests <- r })
	a, err := agent.New(
		agent.WithNodeName("node"), agent.WithRootDir(t.TempDir()),
		agent.WithNode(node.Config{DisableCgroups: true, MemoryQoS: podspec.MemoryQoS{ThrottlingFactor: 1}}),
		agent.WithRuntimeEndpoint(endpoint),
		agent.WithConfig(cri.Config{Node: cri.Node{Swap: cri.NoSwap, SeccompDefault: true, NoCPUQuota: false, CPUQuotaPeriod: 20 * time.Millisecond, MaskedPaths: []string{"/proc/secret"}}}),
		agent.WithSource("memory", podsource.NewMemory(func() *corev1.Pod {
			pod := agenttest.Pod("web")
			pod.Spec.Containers[0].Resources.Limits = resources("cpu=500m", "memory=64Mi")
			return pod
		}())),
	)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()
	select {
	case r := <-requests:
		linux := r.GetConfig().GetLinux()
		assert.Equal(t, criv1.SecurityProfile_RuntimeDefault, linux.GetSecurityContext().GetSeccomp().GetProfileType())
		assert.Equal(t, int64(20000), linux.GetResources().GetCpuPeriod(), "microseconds")
		assert.Equal(t, int64(10000), linux.GetResources().GetCpuQuota())
		assert.Contains(t, linux.GetSecurityContext().GetMaskedPaths(), "/proc/secret")
		switch machine := cri.DetectNode(os.DirFS("/")); {
		case machine.CgroupV2:
			assert.Equal(t, "67108864", linux.GetResources().GetUnified()["memory.high"])
			assert.Equal(t, machine.NoSwapController, linux.GetResources().GetUnified()["memory.swap.max"] != "0")
		case machine.NoSwapController:
			assert.Zero(t, linux.GetResources().GetMemorySwapLimitInBytes())
		default:
			assert.Equal(t, int64(64<<20), linux.GetResources().GetMemorySwapLimitInBytes(), "memory and swap together")
		}
		assert.NotZero(t, linux.GetResources().GetOomScoreAdj(), "the memory of the machine is detected")
	case <-time.After(time.Minute):
		t.Fatal("no container was created")
	}
}

// Pods and containers have one policy: that of the node.
func TestWithNode_MemoryQoSReachesTheCgroups(t *testing.T) {
	v1 := t.TempDir() // which cannot implement it
	for _, controller := range []string{"cpu", "memory", "pids"} {
		require.NoError(t, os.Mkdir(filepath.Join(v1, controller), 0o700))
	}
	for qos, want := range map[podspec.MemoryQoS]bool{{}: false, {ReserveRequests: true}: true} {
		a, err := agent.New(agent.WithNodeName("node"), agent.WithRootDir(t.TempDir()), agent.WithSimulatedRuntime(),
			agent.WithNode(node.Config{MemoryQoS: qos}), agent.WithConfig(cgroup.Config{Root: v1, Driver: cgroup.Cgroupfs}))
		require.NoError(t, err)
		m, ok := a.Components().Cgroups.(*cgroup.Manager)
		require.True(t, ok)
		assert.Equal(t, want, strings.Contains(strings.Join(m.Unenforced(), "\n"), "MemoryQoS: "))
	}
	_, err := agent.New(agent.WithNode(node.Config{MemoryQoS: podspec.MemoryQoS{ThrottlingFactor: 3}}))
	require.ErrorContains(t, err, "node: MemoryQoS.ThrottlingFactor must be from 0 to 1")
}

// A node without CPU quotas has none for pods either, whose cgroups would limit their containers, and those of
// pods have the period of their containers.
func TestWithConfig_CPUQuotaReachesTheCgroups(t *testing.T) {
	pod := agenttest.Pod("web")
	pod.UID = "u"
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: resources("cpu=500m", "memory=64Mi"), Limits: resources("cpu=500m", "memory=64Mi")}
	for want, ofContainers := range map[string]cri.Node{"50000 100000": {}, "max 100000": {NoCPUQuota: true}, "10000 20000": {CPUQuotaPeriod: 20 * time.Millisecond}} {
		root := t.TempDir()
		for _, dir := range []string{"", "kubepods", "kubepods/burstable", "kubepods/besteffort", "kubepods/podu"} {
			require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(root, dir, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o600))
			for _, file := range []string{"cgroup.subtree_control", "cpu.max", "cpu.weight", "memory.max", "pids.max"} {
				require.NoError(t, os.WriteFile(filepath.Join(root, dir, file), nil, 0o600))
			}
		}
		a, err := agent.New(agent.WithNodeName("node"), agent.WithRootDir(t.TempDir()), agent.WithSimulatedRuntime(),
			agent.WithConfig(cri.Config{Node: ofContainers}), agent.WithConfig(cgroup.Config{Root: root, Driver: cgroup.Cgroupfs}))
		require.NoError(t, err)
		_, err = a.Components().Cgroups.Ensure(t.Context(), pod)
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(root, "kubepods/podu/cpu.max"))
		require.NoError(t, err)
		assert.Equal(t, want, strings.TrimSpace(string(got)))
	}
}
