package doctest

import (
	"bytes"
	"context"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/server"
)

func newPod(image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}},
	}
}

// stopped is a context that is done.
func stopped(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestMinimal(t *testing.T) {
	require.NoError(t, minimal(stopped(t), "unix:///run/nothing.sock", filepath.Join(t.TempDir(), "root"), t.TempDir()))
}

func TestQueue_KeepsTheLastValidSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		messages, phases := make(chan []byte), map[string]corev1.PodPhase{}
		var mu sync.Mutex // guards phases
		requireRunning := func() {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, map[string]corev1.PodPhase{"web-edge-1": corev1.PodRunning}, phases)
		}
		root := filepath.Join(t.TempDir(), "root")
		opts := sourceOptions(Queue{messages}, root, func(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
			mu.Lock()
			defer mu.Unlock()
			phases[pod.Name] = st.Phase
			return nil
		})
		a, err := agent.New(append(opts, agent.WithSimulatedRuntime(), agent.WithNodeName("edge-1"), agent.WithRootDir(root),
			agent.WithNode(node.Config{DisableCgroups: true}), drain(), replaced())...)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.Run(ctx) }()
		messages <- []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, image: example/web:1}]}\n")
		time.Sleep(time.Minute)
		requireRunning()
		messages <- []byte("garbage")
		time.Sleep(time.Minute)
		require.Len(t, a.SourceErrors(), 1)
		requireRunning()
		stop()
		require.NoError(t, <-done)
	})
}

func TestRegistry_Admit(t *testing.T) {
	require.True(t, Registry("registry.example").Admit(newPod("registry.example/web:1"), nil).Admitted)
	require.Equal(t, "ForbiddenRegistry", Registry("registry.example").Admit(newPod("registry.example.evil/web:1"), nil).Reason)
}

func TestMainsPower_Admit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "online")
	_, err := MainsPower{file}.Admit(t.Context(), newPod("web"))
	require.Error(t, err)
	for content, want := range map[string]bool{"1\n": true, "0\n": false} {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		result, err := MainsPower{file}.Admit(t.Context(), newPod("web"))
		require.NoError(t, err)
		require.Equal(t, want, result.Admitted)
	}
}

func TestHostCerts_MountsIntoEachContainer(t *testing.T) {
	src := podsource.NewMemory(newPod("web"))
	ctx, stop := context.WithCancel(t.Context())
	require.NoError(t, HostCerts{src}.Watch(ctx, func(set podsource.Set) {
		spec := set.Pods[0].Pod.Spec
		require.Equal(t, "/etc/ssl/certs", spec.Volumes[0].HostPath.Path)
		require.Equal(t, spec.Volumes[0].Name, spec.Containers[0].VolumeMounts[0].Name)
		stop()
	}))
	require.Same(t, src, HostCerts{src}.Unwrap())
}

func TestSerialPort(t *testing.T) {
	for name, labels := range map[string]map[string]string{"with the label": {"example.com/serial": "true"}, "without it": nil} {
		t.Run(name, func(t *testing.T) {
			injection, err := SerialPort{}.Inject(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels}}, nil, false)
			require.NoError(t, err)
			require.Len(t, injection.Devices, len(labels))
		})
	}
}

func TestRealtime(t *testing.T) {
	for name, labels := range map[string]map[string]string{"with the label": {"example.com/realtime": "true"}, "without it": nil} {
		t.Run(name, func(t *testing.T) {
			req := &criv1.CreateContainerRequest{
				Config:        &criv1.ContainerConfig{Linux: &criv1.LinuxContainerConfig{Resources: &criv1.LinuxContainerResources{}}},
				SandboxConfig: &criv1.PodSandboxConfig{Labels: labels},
			}
			var sent any
			require.NoError(t, realtime(t.Context(), "CreateContainer", req, nil, nil,
				func(_ context.Context, _ string, req, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
					sent = req
					return nil
				}))
			require.Len(t, sent.(*criv1.CreateContainerRequest).GetConfig().GetLinux().GetResources().GetUnified(), len(labels))
			require.Empty(t, req.GetConfig().GetLinux().GetResources().GetUnified())
		})
	}
}

func TestOptions_MakeAnAgent(t *testing.T) {
	client, err := withClient("unix:///run/nothing.sock", t.TempDir(), slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	for name, opts := range map[string][]agent.Option{
		"an endpoint":         append(append(imageOptions(), admitters()...), agent.WithRuntimeEndpoint("unix:///run/nothing.sock")),
		"a client of its own": append(admitters(), client, agent.WithInjector(SerialPort{})),
	} {
		t.Run(name, func(t *testing.T) {
			a, srv, err := observed(append(append(opts, diskOptions()...), agent.WithRootDir(t.TempDir()))...)
			require.NoError(t, err)
			require.Error(t, a.Healthy())
			w := httptest.NewRecorder()
			srv.ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1/metrics", nil))
			require.Contains(t, w.Body.String(), "kubelet_running_pods")
			require.Contains(t, w.Body.String(), "sublet_problems")
		})
	}
}

// slowVolumes need ten seconds.
type slowVolumes struct{ agent.Volumes }

func (slowVolumes) Mount(context.Context, *corev1.Pod, podspec.Objects) (map[string]runtime.Volume, error) {
	time.Sleep(10 * time.Second)
	return nil, nil
}

func TestSlowMounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		_, err := slowMounts{slowVolumes{}, slog.New(slog.NewTextHandler(&out, nil))}.Mount(t.Context(), newPod("web"), nil)
		require.NoError(t, err)
		require.Contains(t, out.String(), "pod=default/web duration=10s")
	})
}

func TestRunBoth(t *testing.T) {
	a, err := agent.New(agent.WithSimulatedRuntime())
	require.NoError(t, err)
	srv, err := server.New(server.Config{Addr: "127.0.0.1:0"})
	require.NoError(t, err)
	require.NoError(t, runBoth(stopped(t), a, srv))
}
