package kubeapi_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // the type of client-go
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	clientexec "k8s.io/client-go/util/exec"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/runtime/embedded/stream"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

// realNode is an agent with processes of this machine as containers, a static pod "web",
// and the API on a port.
type realNode struct {
	kubeconfig string
	config     *rest.Config
	client     kubernetes.Interface
}

const staticManifest = `{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {terminationGracePeriodSeconds: 1, containers: [
  {name: main, image: "host:1", command: [sh, -c, 'echo started; exec sleep 1000']}]}}`

// runNode runs an agent with processes of this machine.
func runNode(t *testing.T) *realNode {
	t.Helper()
	dir := t.TempDir()
	rt, err := embedded.New(embedded.Config{
		Executor: hostprocess.New(hostprocess.Config{Root: filepath.Join(dir, "containers"), Unprivileged: true}), Images: []embedded.Image{{Ref: "host:1"}},
	})
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	streams, err := stream.New(rt, listener)
	require.NoError(t, err)
	conn, err := rt.Dial()
	require.NoError(t, err)
	stop := start(t, streams.Run)
	t.Cleanup(func() { // after the agent
		stop()
		require.NoError(t, rt.Close())
		_ = conn.Close()
	})
	n := serveNode(t, dir, conn, node.Config{IPs: []string{"127.0.0.1"}, DisableCgroups: true}, staticManifest)
	n.waitFor(t, "web-"+nodeName, isReady)
	return n
}

// serveNode runs an agent with all that docs/kubectl.md describes on a runtime.
func serveNode(t *testing.T, dir string, conn grpc.ClientConnInterface, cfg node.Config, manifest string) *realNode {
	t.Helper()
	events, store := kubeapi.NewEvents(), kubeapi.NewStore(filepath.Join(dir, "pods"))
	client, err := cri.New(conn, cri.Config{Recorder: events})
	require.NoError(t, err)
	manifests := filepath.Join(dir, "manifests")
	require.NoError(t, os.Mkdir(manifests, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(manifests, "web.yaml"), []byte(manifest), 0o600))
	cfg.PodLogsDir = filepath.Join(dir, "logs")
	a, err := agent.New(
		agent.WithNodeName(nodeName), agent.WithNode(cfg),
		agent.WithRootDir(filepath.Join(dir, "root")), agent.WithRuntime(client),
		agent.WithSource("file", podsource.File(manifests)), agent.WithSource("kubectl", store), agent.WithStatusSink(store), agent.WithRecorder(events),
		agent.WithConfig(podworkers.DrainConfig{Timeout: 20 * time.Second}),
	)
	require.NoError(t, err)
	api, err := kubeapi.New(kubeapi.Config{
		NodeName: nodeName, Pods: a.Pods, Watch: a.Watch, Operator: a.Operator, Events: events, Store: store, Stats: a.CPUAndMemoryStats, Objects: a.Components().Sources.Objects,
		Node: func(ctx context.Context) (*corev1.Node, error) {
			status, err := a.NodeStatus(ctx)
			return &corev1.Node{Status: status}, err
		},
	})
	require.NoError(t, err)
	front, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	creds, err := kubeapi.LoadCredentials(kubeapi.CredentialsConfig{Dir: filepath.Join(dir, "credentials"), Addr: front.Addr().String(), NodeName: nodeName})
	require.NoError(t, err)
	srv, err := server.New(server.Config{
		Addr: front.Addr().String(), TLS: creds.TLS(), NodeName: nodeName, Authenticators: []server.Authenticator{creds}, Authorizer: kubeapi.AllowAll(),
		KubeAPI: api, Pods: a.Pods, Logs: a.Operator, Streams: a.Operator,
	})
	require.NoError(t, err)
	n := &realNode{kubeconfig: creds.Kubeconfig()}
	t.Cleanup(start(t, a.Run, api.Run, creds.Run, func(ctx context.Context) error { return srv.Serve(ctx, front) }))
	n.config, err = clientcmd.BuildConfigFromFlags("", n.kubeconfig)
	require.NoError(t, err)
	n.client, err = kubernetes.NewForConfig(n.config)
	require.NoError(t, err)
	return n
}

// start runs functions until stop is called.
func start(t *testing.T, all ...func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range all {
		wg.Go(func() { assert.NoError(t, run(ctx)) })
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// waitFor waits for a state of a pod.
func (n *realNode) waitFor(t *testing.T, name string, is func(*corev1.Pod) bool) (pod *corev1.Pod) {
	t.Helper()
	eventually(t, func() bool {
		var err error
		pod, err = n.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && is(pod)
	}, name)
	return pod
}

// create runs a command in a pod of the store and waits until it is ready.
func (n *realNode) create(t *testing.T, name string, command ...string) *corev1.Pod {
	t.Helper()
	pod := newPod(name)
	pod.Spec.Containers[0].Image, pod.Spec.Containers[0].Command = "host:1", command
	_, err := n.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	return n.waitFor(t, name, isReady)
}

// exec runs a command in a pod by a WebSocket or SPDY.
func (n *realNode) exec(t *testing.T, webSocket bool, pod string, stdin io.Reader, stdout io.Writer, command ...string) error {
	t.Helper()
	req := n.client.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: command, Stdin: stdin != nil, Stdout: true}, scheme.ParameterCodec)
	var e remotecommand.Executor
	var err error
	if webSocket {
		e, err = remotecommand.NewWebSocketExecutor(n.config, http.MethodGet, req.URL().String())
	} else {
		e, err = remotecommand.NewSPDYExecutor(n.config, http.MethodPost, req.URL())
	}
	require.NoError(t, err)
	return e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout})
}

// SV-4
func TestAgent_ClientGo(t *testing.T) {
	n := runNode(t)
	pods := n.client.CoreV1().Pods("default")
	static := "web-" + nodeName

	t.Run("logs", func(t *testing.T) {
		eventually(t, func() bool {
			b, err := pods.GetLogs(static, &corev1.PodLogOptions{}).DoRaw(t.Context())
			return err == nil && string(b) == "started\n"
		}, "the log")
		err := pods.GetLogs(static, &corev1.PodLogOptions{Previous: true}).Do(t.Context()).Error()
		require.ErrorContains(t, err, "previous terminated container")
		err = pods.GetLogs(static, &corev1.PodLogOptions{Container: "none"}).Do(t.Context()).Error()
		assert.True(t, apierrors.IsBadRequest(err), "%v", err)
		require.ErrorContains(t, err, "container none is not valid for pod "+static)
	})
	t.Run("exec", func(t *testing.T) {
		data := bytes.Repeat([]byte("0123456789"), 300_000)
		for _, webSocket := range []bool{true, false} {
			var out bytes.Buffer
			require.NoError(t, n.exec(t, webSocket, static, bytes.NewReader(data), &out, "sha256sum"))
			assert.Equal(t, fmt.Sprintf("%x", sha256.Sum256(data)), strings.Fields(out.String())[0])
			err := n.exec(t, webSocket, static, nil, io.Discard, "sh", "-c", "exit 7")
			var exit clientexec.CodeExitError
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, 7, exit.Code)
			assert.Error(t, n.exec(t, webSocket, "none", nil, io.Discard, "true"))
		}
	})
	t.Run("port-forward", func(t *testing.T) {
		testPortForward(t, n, static)
	})
	t.Run("static pod restarts", func(t *testing.T) {
		before := n.waitFor(t, static, isReady)
		require.NoError(t, pods.Delete(t.Context(), static, metav1.DeleteOptions{}))
		after := n.waitFor(t, static, func(pod *corev1.Pod) bool { return pod.UID != before.UID && isReady(pod) })
		assert.NotEqual(t, before.Status.ContainerStatuses[0].ContainerID, after.Status.ContainerStatuses[0].ContainerID)
	})
	t.Run("stored pod", func(t *testing.T) {
		n.create(t, "job", "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done")
		require.NoError(t, n.exec(t, true, "job", nil, io.Discard, "true"))
		grace := int64(5)
		require.NoError(t, pods.Delete(t.Context(), "job", metav1.DeleteOptions{GracePeriodSeconds: &grace}))
		eventually(t, func() bool {
			_, err := pods.Get(t.Context(), "job", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}, "it ends and goes")
		events, err := n.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=job"})
		require.NoError(t, err)
		var reasons []string
		for i := range events.Items {
			reasons = append(reasons, events.Items[i].Reason)
		}
		assert.Contains(t, reasons, "Started")
	})
	t.Run("usage", func(t *testing.T) {
		b, err := n.client.CoreV1().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/nodes").DoRaw(t.Context())
		require.NoError(t, err)
		assert.Contains(t, string(b), "NodeMetricsList")
	})
}

// testPortForward forwards a port of the machine, on which a server of the test listens.
func testPortForward(t *testing.T, n *realNode, pod string) {
	target, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	hello := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }), ReadHeaderTimeout: testTimeout}
	go func() { _ = hello.Serve(target) }()
	defer hello.Close()
	url := n.client.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name(pod).SubResource("portforward").URL()
	transport, upgrader, err := clientspdy.RoundTripperFor(n.config)
	require.NoError(t, err)
	tunnel, err := portforward.NewSPDYOverWebsocketDialer(url, n.config)
	require.NoError(t, err)
	for name, dialer := range map[string]interface {
		Dial(protocols ...string) (httpstream.Connection, string, error)
	}{"SPDY": clientspdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url), "WebSocket": tunnel} {
		stop, ready := make(chan struct{}), make(chan struct{})
		f, err := portforward.New(dialer, []string{fmt.Sprintf("0:%d", target.Addr().(*net.TCPAddr).Port)}, stop, ready, io.Discard, io.Discard)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- f.ForwardPorts() }()
		<-ready
		ports, err := f.GetPorts()
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
				res, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local)) //nolint:noctx // ends with the test
				if assert.NoError(t, err, name) {
					b, _ := io.ReadAll(res.Body)
					_ = res.Body.Close()
					assert.Equal(t, "hello", string(b), name)
				}
			})
		}
		wg.Wait()
		close(stop)
		assert.NoError(t, <-done)
	}
}

// findKubectl returns the path of a kubectl, or skips the test.
func findKubectl(t *testing.T) string {
	t.Helper()
	kubectl := os.Getenv("SUBLET_KUBECTL")
	if kubectl == "" {
		kubectl, _ = exec.LookPath("kubectl")
	}
	if kubectl == "" {
		t.Skip("no kubectl: set SUBLET_KUBECTL or put it in PATH")
	}
	return kubectl
}

// TestAgent_Kubectl runs the unmodified kubectl, if there is one: that of SUBLET_KUBECTL or of PATH. SV-4
func TestAgent_Kubectl(t *testing.T) {
	kubectl := findKubectl(t)
	n := runNode(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pod.json"), []byte(strings.ReplaceAll(manifest("job"), `"image":"app:1"`, `"image":"host:1","command":["sleep","1000"]`)), 0o600))
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data"), data, 0o600))
	for _, c := range []struct{ args, want string }{
		{"version", "Server Version"},
		{"get pods -o wide", "web-edge-1   1/1     Running   0"},
		{"get nodes", "edge-1   Ready"},
		{"logs web-edge-1 --tail=1", "started"},
		{"exec web-edge-1 -- echo hi", "hi"},
		{"describe pod web-edge-1", "Started"},
		{"describe node edge-1", "Ready"},
		{"events", "Pod/web-edge-1"},
		{"explain pod.spec.containers.image", "<string>"},
		{"auth can-i create pods", "yes"},
		{"auth whoami", "node-owner"},
		{"get secrets", "not served"},
		{"cluster-info", "Kubernetes control plane is running at"},
		{"delete pod web-edge-1", "deleted"},
		{"wait --for=condition=Ready pod/web-edge-1 --timeout=60s", "condition met"},
		{"apply -f DIR/pod.json --dry-run=server", "created (server dry run)"},
		{"apply -f DIR/pod.json", "created"},
		{"apply -f DIR/pod.json", "unchanged"},
		{"apply --server-side -f DIR/pod.json", "without --server-side"},
		{"wait --for=condition=Ready pod/job --timeout=60s", "condition met"},
		{"cp DIR/data job:DIR/copy", ""},
		{"cp job:DIR/copy DIR/back", ""},
		{"label pod job tier=x", "labeled"},
		{"get pods -l tier=x -o name", "pod/job"},
		{"patch pod job -p {\"spec\":{\"hostNetwork\":true}}", "may not change fields"},
		{"debug job --image=host:1 -c dbg -- sleep 100", ""},
		{"wait --for=jsonpath={.status.ephemeralContainerStatuses[0].state.running} pod/job --timeout=60s", "condition met"},
		{"replace --force --grace-period=1 -f DIR/pod.json", "replaced"},
		{"delete pod job --grace-period=1", "deleted"},
		{"get pod job", "not found"},
	} {
		args := strings.Fields(strings.ReplaceAll(c.args, "DIR", dir))
		args = append([]string{"--kubeconfig", n.kubeconfig, "--cache-dir", filepath.Join(dir, "cache")}, args...)
		var out []byte
		for range 3 {
			out, _ = exec.CommandContext(t.Context(), kubectl, args...).CombinedOutput() // what it says shows whether it has failed
			if !bytes.Contains(out, []byte("Unknown stream id")) {
				break // otherwise it is a kubectl that reads before it has made its streams, such as 1.32, and has lost the output
			}
		}
		assert.Contains(t, string(out), c.want, c.args)
	}
	back, err := os.ReadFile(filepath.Join(dir, "back"))
	require.NoError(t, err)
	assert.Equal(t, sha256.Sum256(data), sha256.Sum256(back))
}
