package agent_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// shared is a runtime with pods of several owners.
type shared struct {
	t    *testing.T
	cc   grpc.ClientConnInterface
	rs   criv1.RuntimeServiceClient
	logs string
}

// sharing runs f in a bubble with a runtime in it.
func sharing(t *testing.T, f func(t *testing.T, r *shared)) {
	t.Helper()
	logs := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		inside, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
		require.NoError(t, err)
		defer inside.Close()
		cc, err := inside.Dial()
		require.NoError(t, err)
		defer cc.Close()
		f(t, &shared{t: t, cc: cc, rs: criv1.NewRuntimeServiceClient(cc), logs: logs})
	})
}

// start runs an agent on the runtime until the returned function is called.
func (r *shared) start(root string, opts ...agent.Option) (a *agent.Agent, stop func()) {
	r.t.Helper()
	client, err := cri.New(r.cc, cri.Config{})
	require.NoError(r.t, err)
	a, err = agent.New(append([]agent.Option{
		agent.WithNodeName("node"), agent.WithRootDir(root), agent.WithRuntime(client),
		agent.WithNode(node.Config{DisableCgroups: true, PodLogsDir: r.logs}),
	}, opts...)...)
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return a, func() { cancel(); assert.NoError(r.t, <-done) }
}

// kubelet creates a pod of the source as a kubelet does: an init container that has
// exited and a running container, with the kubelet's container hash.
func (r *shared) kubelet(pod *corev1.Pod, source string) (sandbox, container string) {
	r.t.Helper()
	ctx, labels := r.t.Context(), map[string]string{
		runtime.LabelPodName: pod.Name, runtime.LabelPodNamespace: pod.Namespace, runtime.LabelPodUID: string(pod.UID),
	}
	dir := filepath.Join(r.logs, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
	config := &criv1.PodSandboxConfig{
		Metadata: &criv1.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)}, Labels: labels,
		Annotations:  map[string]string{"kubernetes.io/config.source": source, "kubernetes.io/config.seen": "2026-01-01T00:00:00Z"},
		LogDirectory: dir,
	}
	maps.Copy(config.Annotations, pod.Annotations)
	sb, err := r.rs.RunPodSandbox(ctx, &criv1.RunPodSandboxRequest{Config: config})
	require.NoError(r.t, err)
	for _, ct := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		require.NoError(r.t, os.MkdirAll(filepath.Join(dir, ct.Name), 0o755))
		_, err := criv1.NewImageServiceClient(r.cc).PullImage(ctx, &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: ct.Image}})
		require.NoError(r.t, err)
		made, err := r.rs.CreateContainer(ctx, &criv1.CreateContainerRequest{
			PodSandboxId: sb.GetPodSandboxId(), SandboxConfig: config, Config: &criv1.ContainerConfig{
				Metadata: &criv1.ContainerMetadata{Name: ct.Name}, Image: &criv1.ImageSpec{Image: ct.Image}, LogPath: ct.Name + "/0.log",
				Labels: map[string]string{
					runtime.LabelPodName: pod.Name, runtime.LabelPodNamespace: pod.Namespace, runtime.LabelPodUID: string(pod.UID),
					runtime.LabelContainerName: ct.Name,
				},
				Annotations: map[string]string{runtime.AnnotationHash: "5b4c2d7e", runtime.AnnotationRestartCount: "0"},
			},
		})
		require.NoError(r.t, err)
		container = made.GetContainerId()
		_, err = r.rs.StartContainer(ctx, &criv1.StartContainerRequest{ContainerId: container})
		require.NoError(r.t, err)
		if ct.Name == "init" {
			time.Sleep(2 * time.Second)
		}
	}
	return sb.GetPodSandboxId(), container
}

// running returns the id of the container that runs, by pod.
func (r *shared) running() map[types.UID]string {
	r.t.Helper()
	list, err := r.rs.ListContainers(r.t.Context(), &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
		State: &criv1.ContainerStateValue{State: criv1.ContainerState_CONTAINER_RUNNING},
	}})
	require.NoError(r.t, err)
	out := map[types.UID]string{}
	for _, ct := range list.GetContainers() {
		out[types.UID(ct.GetLabels()[runtime.LabelPodUID])] = ct.GetId()
	}
	return out
}

func withInit(pod *corev1.Pod) *corev1.Pod {
	init := pod.Spec.Containers[0]
	init.Name = "init"
	pod.Annotations["init.sim.sublet.dev/run-for"] = "1s"
	pod.Spec.InitContainers = []corev1.Container{init}
	return pod
}

// OW-1: pods of a kubelet and their logs stay, whatever the sources of the agent contain.
func TestAgent_LeavesPodsOfAKubeletAlone(t *testing.T) {
	sharing(t, func(t *testing.T, r *shared) {
		sb, ct := r.kubelet(withInit(agenttest.SizedPod("coredns", "1Mi", "0s=1Mi")), "api")
		_, stop := r.start(t.TempDir(), agent.WithSource("api", podsource.NewMemory(agenttest.SizedPod("web", "1Mi", "0s=1Mi"))))
		time.Sleep(time.Hour)
		stop()
		assert.Equal(t, ct, r.running()["uid-coredns"])
		assert.NotEmpty(t, r.running()["uid-web"])
		st, err := r.rs.PodSandboxStatus(t.Context(), &criv1.PodSandboxStatusRequest{PodSandboxId: sb})
		require.NoError(t, err)
		assert.Equal(t, criv1.PodSandboxState_SANDBOX_READY, st.GetStatus().GetState())
		assert.DirExists(t, filepath.Join(r.logs, "default_coredns_uid-coredns", "main"))
	})
}

// OW-1, AG-6: agents with different root directories share a runtime and a log directory
// without observing each other. Each finds its own pods after a restart.
func TestAgent_SharesARuntimeWithAnother(t *testing.T) {
	sharing(t, func(t *testing.T, r *shared) {
		roots := []string{t.TempDir(), t.TempDir()}
		pods := []*podsource.Memory{
			podsource.NewMemory(agenttest.SizedPod("a", "1Mi", "0s=1Mi"), agenttest.SizedPod("removed", "1Mi", "0s=1Mi")), podsource.NewMemory(agenttest.SizedPod("b", "1Mi", "0s=1Mi")),
		}
		var before map[types.UID]string
		for round := range 3 {
			var stops []func()
			var agents []*agent.Agent
			for i, root := range roots {
				a, stop := r.start(root, agent.WithSource("memory", pods[i]))
				agents, stops = append(agents, a), append(stops, stop)
			}
			time.Sleep(10 * time.Minute)
			switch round {
			case 0:
				before = r.running()
				require.Len(t, before, 3)
				require.Len(t, agents[1].Pods(), 1)
				pods[0].Set(agenttest.SizedPod("a", "1Mi", "0s=1Mi"))
				time.Sleep(10 * time.Minute)
				delete(before, "uid-removed")
				assert.NoDirExists(t, filepath.Join(r.logs, "default_removed_uid-removed"))
			case 1:
				for _, a := range agents {
					assert.NoError(t, a.Healthy())
				}
			}
			assert.Equal(t, before, r.running(), "no container is stopped or created, round %d", round)
			for _, stop := range stops {
				stop()
			}
		}
		for _, name := range []string{"a", "b"} {
			assert.DirExists(t, filepath.Join(r.logs, "default_"+name+"_uid-"+name))
		}
	})
}

// OW-2: with the option, the agent adopts a pod of a kubelet, which keeps running.
func TestAgent_AdoptsPodsOfAKubelet(t *testing.T) {
	sharing(t, func(t *testing.T, r *shared) {
		web := withInit(agenttest.SizedPod("web", "1Mi", "0s=1Mi"))
		_, ct := r.kubelet(web, "file")
		_, other := r.kubelet(agenttest.SizedPod("coredns", "1Mi", "0s=1Mi"), "api")
		r.kubelet(agenttest.SizedPod("old", "1Mi", "0s=1Mi"), "file")
		root, source := t.TempDir(), podsource.NewMemory(web)
		var statuses agenttest.Statuses
		_, stop := r.start(root, agent.WithSource("memory", source), agent.WithAdoption("file"), agent.WithStatusSink(&statuses))
		time.Sleep(time.Hour)
		assert.Equal(t, map[types.UID]string{"uid-web": ct, "uid-coredns": other}, r.running(),
			"the desired pod keeps running, the other one ends, and pods of another source stay")
		st := statuses.Of("web")
		require.Equal(t, corev1.PodRunning, st.Phase)
		assert.Zero(t, st.ContainerStatuses[0].RestartCount)

		// Another start of the same agent, with the option still there.
		stop()
		_, stop = r.start(root, agent.WithSource("memory", source), agent.WithAdoption("file"))
		time.Sleep(time.Hour)
		assert.Equal(t, ct, r.running()["uid-web"])
		// A container that exits is created again in the sandbox of the kubelet.
		_, err := r.rs.StopContainer(t.Context(), &criv1.StopContainerRequest{ContainerId: ct})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		recreated := r.running()["uid-web"]
		assert.NotEmpty(t, recreated)
		assert.NotEqual(t, ct, recreated)
		// The pod is removed with all that the kubelet created for it.
		source.Set()
		time.Sleep(10 * time.Minute)
		stop()
		assert.Equal(t, map[types.UID]string{"uid-coredns": other}, r.running())
		assert.NoDirExists(t, filepath.Join(r.logs, "default_web_uid-web"))
		assert.DirExists(t, filepath.Join(r.logs, "default_coredns_uid-coredns"))
	})
}

// OW-1: pods of another agent are not adopted, even if their source has the name.
func TestAgent_AdoptsNoPodsOfAnother(t *testing.T) {
	sharing(t, func(t *testing.T, r *shared) {
		_, stop := r.start(t.TempDir(), agent.WithSource("file", podsource.NewMemory(agenttest.SizedPod("web", "1Mi", "0s=1Mi"))))
		time.Sleep(time.Minute)
		stop()
		before := r.running()
		require.Len(t, before, 1)
		_, stop = r.start(t.TempDir(), agent.WithAdoption("file"))
		time.Sleep(time.Hour)
		stop()
		assert.Equal(t, before, r.running())
	})
}

// OW-1: an agent that cannot read its owner id stops with an error that names the
// remedy, and changes nothing.
func TestAgent_StopsWithoutItsOwnerID(t *testing.T) {
	for name, spoil := range map[string]func(file string) error{
		"cut off": func(file string) error { return os.Truncate(file, 7) },
		"empty":   func(file string) error { return os.Truncate(file, 0) },
		"missing": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			sharing(t, func(t *testing.T, r *shared) {
				root := t.TempDir()
				source := agent.WithSource("memory", podsource.NewMemory(agenttest.SizedPod("web", "1Mi", "0s=1Mi")))
				_, stop := r.start(root, source)
				time.Sleep(time.Minute)
				stop()
				before := r.running()
				id, err := os.ReadFile(filepath.Join(root, "owner-id"))
				require.NoError(t, err)
				require.NoError(t, spoil(filepath.Join(root, "owner-id")))

				client, err := cri.New(r.cc, cri.Config{})
				require.NoError(t, err)
				a, err := agent.New(agent.WithNodeName("node"), agent.WithRootDir(root), agent.WithRuntime(client), agent.WithNode(node.Config{DisableCgroups: true}))
				require.NoError(t, err)
				err = a.Run(t.Context())
				require.ErrorIs(t, err, agent.ErrOwnerID)
				assert.ErrorContains(t, err, "sublet.dev/owner")
				assert.Equal(t, before, r.running())

				// The remedy that the error names.
				require.NoError(t, os.WriteFile(filepath.Join(root, "owner-id"), id, 0o600))
				_, stop = r.start(root, source)
				time.Sleep(time.Minute)
				stop()
				assert.Equal(t, before, r.running())
			})
		})
	}
}

func TestWithAdoption_NeedsARuntimeWithOwners(t *testing.T) {
	for name, opts := range map[string][]agent.Option{
		"WithAdoption: nil or empty":                          {agent.WithAdoption()},
		`adoption: sources ["file" ""] must be named`:         {agent.WithAdoption("file", "")},
		"WithAdoption: the runtime is no runtime.OwnerSetter": {agent.WithRuntime(bare{}), agent.WithRootDir("/nowhere"), agent.WithAdoption("file")},
	} {
		_, err := agent.New(opts...)
		require.ErrorContains(t, err, name)
	}
}
