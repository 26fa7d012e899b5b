package server_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/server"
)

// apiServer is a real API server with a node whose server is a secureNode.
type apiServer struct {
	*kubetest.APIServer
	config *rest.Config
	url    *url.URL // of its pod
}

// startAPIServer starts one with a pod on the node, which declares features.
func startAPIServer(t *testing.T, features ...string) *apiServer {
	t.Helper()
	cluster := kubetest.Start(t)
	n := serveSecure(t, func(cfg *server.Config) {
		cfg.Authenticators = []server.Authenticator{&server.ClientCertificates{CAFile: cluster.CAFile()}}
	})
	n.allow = func(user *authenticationv1.UserInfo, _ *authorizationv1.ResourceAttributes) (bool, error) {
		return user.Username == "kube-apiserver-kubelet-client", nil
	}
	_, port, err := net.SplitHostPort(n.addr)
	require.NoError(t, err)
	number, err := strconv.ParseUint(port, 10, 16)
	require.NoError(t, err)
	admin := cluster.Admin().CoreV1()
	node, err := admin.Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	node.Status = corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}, DeclaredFeatures: features,
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(number)}},
	}
	_, err = admin.Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = admin.Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{
		NodeName: "node-1", AutomountServiceAccountToken: new(bool), Containers: []corev1.Container{{Name: "app", Image: "i"}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return &apiServer{APIServer: cluster, config: cluster.Config("admin", "system:masters"), url: admin.RESTClient().Get().Resource("pods").Namespace("default").Name("web").URL()}
}

// target returns the URL of a subresource of the pod.
func (a *apiServer) target(subresource string, query url.Values) *url.URL {
	target := a.url.JoinPath(subresource)
	target.RawQuery = query.Encode()
	return target
}

// webSocket connects to a subresource of the pod by a WebSocket.
func (a *apiServer) webSocket(t *testing.T, subresource string, query url.Values, options remotecommand.StreamOptions) error {
	t.Helper()
	e, err := remotecommand.NewWebSocketExecutor(a.config, http.MethodGet, a.target(subresource, query).String())
	require.NoError(t, err)
	return e.StreamWithContext(t.Context(), options)
}

// streams returns how many WebSockets the API server has passed on to nodes, and how many it has converted.
func (a *apiServer) streams(t *testing.T) (passed, converted int) {
	t.Helper()
	metrics, err := a.Admin().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	require.NoError(t, err)
	for line := range strings.Lines(string(metrics)) {
		if !strings.HasPrefix(line, "apiserver_websocket_streaming_requests_total{") {
			continue
		}
		n, err := strconv.Atoi(strings.Fields(line)[1])
		require.NoError(t, err)
		if strings.Contains(line, "proxied_to_kubelet") {
			passed += n
		} else {
			converted += n
		}
	}
	return passed, converted
}

// An API server passes the WebSockets of its clients on to a node that declares FeatureWebSockets. SV-3
func TestFeatureWebSockets_RealAPIServer(t *testing.T) {
	a := startAPIServer(t, server.FeatureWebSockets)
	streams := func(names ...string) url.Values {
		query := url.Values{"container": {"app"}}
		for _, name := range names {
			query.Set(name, "true")
		}
		return query
	}
	execute := func(command string, names ...string) url.Values {
		query := streams(names...)
		query.Set("command", command)
		return query
	}
	text := strings.Repeat("0123456789abcdef", 1<<14)
	var out, errOut bytes.Buffer
	require.NoError(t, a.webSocket(t, "exec", execute("cat", "stdin", "stdout", "stderr"), remotecommand.StreamOptions{Stdin: strings.NewReader(text), Stdout: &out, Stderr: &errOut}))
	assert.True(t, text == out.String(), "the output is the input")
	assert.Equal(t, "end of input", errOut.String())

	var code exec.CodeExitError
	require.ErrorAs(t, a.webSocket(t, "exec", execute("false", "stdout"), remotecommand.StreamOptions{Stdout: io.Discard}), &code)
	assert.Equal(t, 42, code.Code)

	queue := make(sizes, 1)
	queue <- remotecommand.TerminalSize{Width: 120, Height: 40}
	defer close(queue)
	in, end := io.Pipe()
	defer func() { _ = end.Close() }()
	out.Reset()
	require.NoError(t, a.webSocket(t, "exec", execute("size", "stdin", "stdout", "tty"), remotecommand.StreamOptions{Stdin: in, Stdout: &out, Tty: true, TerminalSizeQueue: queue}))
	assert.Equal(t, "120x40", out.String())

	a.forward(t)
	a.fromPage(t, execute("output", "stdout"))

	passed, converted := a.streams(t)
	assert.Equal(t, []int{5, 0}, []int{passed, converted}, "all were passed on, and none converted")
}

// forward sends words through a forwarded port.
func (a *apiServer) forward(t *testing.T) {
	t.Helper()
	dialer, err := portforward.NewSPDYOverWebsocketDialer(a.target("portforward", nil), a.config)
	require.NoError(t, err)
	addr, end := forwardPort(t, dialer)
	for i := range 3 {
		require.NoError(t, echo(t, addr, fmt.Sprintf("%04d", i)))
	}
	end()
}

// fromPage runs a command as a page of another origin does, which the API server has allowed.
func (a *apiServer) fromPage(t *testing.T, query url.Values) {
	t.Helper()
	target := a.target("exec", query)
	target.Scheme = "wss"
	cfg, err := websocket.NewConfig(target.String(), "https://dashboard.example")
	require.NoError(t, err)
	cert, err := tls.X509KeyPair(a.config.CertData, a.config.KeyData)
	require.NoError(t, err)
	cas := x509.NewCertPool()
	require.True(t, cas.AppendCertsFromPEM(a.config.CAData))
	cfg.Protocol, cfg.TlsConfig = []string{"v5.channel.k8s.io"}, &tls.Config{RootCAs: cas, Certificates: []tls.Certificate{cert}}
	conn, err := cfg.DialContext(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.ReadFull(conn, make([]byte, 1<<20))
	require.NoError(t, err)
}
