package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/server"
)

// testPod has a container of each kind.
func testPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-1"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init"}}, Containers: []corev1.Container{{Name: "app"}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}},
		},
	}
}

// fakeNode has everything that a server can serve. Its streams are those of the CRI's
// own streaming library, behind a real connection.
type fakeNode struct {
	streaming streaming.Server
	url       *url.URL // of it

	mu     sync.Mutex
	log    func(ctx context.Context, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error
	calls  []string
	exited chan struct{} // a command of fakeRuntime returned
	stall  chan struct{} // closed at the end of the command "stall"
	output atomic.Int64  // bytes that commands "flood" have written
}

func newFakeNode(t *testing.T) *fakeNode {
	t.Helper()
	n := &fakeNode{exited: make(chan struct{}, 100)}
	var handler http.Handler
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			http.Error(w, "credentials of the client", http.StatusTeapot)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(upstream.Close)
	cfg := streaming.DefaultConfig
	var err error
	cfg.BaseURL, err = url.Parse(upstream.URL)
	require.NoError(t, err)
	n.url = cfg.BaseURL
	n.streaming, err = streaming.NewServer(cfg, fakeRuntime{n})
	require.NoError(t, err)
	handler = n.streaming
	return n
}

func (n *fakeNode) config() server.Config {
	return server.Config{
		Addr: loopback, NodeName: "node-1", Logs: n, Streams: n, Commands: n, Checkpointer: n,
		Pods:        func() []*corev1.Pod { return []*corev1.Pod{testPod()} },
		RunningPods: func(context.Context) ([]*corev1.Pod, error) { return []*corev1.Pod{testPod()}, nil },
		Summary:     func(_ context.Context, only bool) (any, error) { return map[string]bool{"only": only}, nil },
		Configz:     func() any { return map[string]string{"rootDir": "/var/lib/sublet"} },
		Flagz:       func() map[string]string { return map[string]string{"v": "2", "node": "n"} },
		Checks:      []server.HealthCheck{{Name: "syncloop", Check: func() error { return nil }}},
		UI:          http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "page "+r.URL.Path) }),
		Handlers: map[string]http.Handler{"/metrics": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "up 1\n")
		})},
	}
}

func (n *fakeNode) record(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, fmt.Sprintf(format, args...))
}

func (n *fakeNode) ReadLog(ctx context.Context, pod *corev1.Pod, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error {
	n.record("log %s/%s", pod.Name, opts.Container)
	if n.log == nil {
		return nil
	}
	return n.log(ctx, opts, stdout, stderr)
}

func parse(text string, err error) (*url.URL, error) {
	if err != nil {
		return nil, err
	}
	return url.Parse(text)
}

func (n *fakeNode) ExecURL(_ context.Context, pod *corev1.Pod, o *corev1.PodExecOptions) (*url.URL, error) {
	n.record("exec %s/%s %q", pod.Name, o.Container, o.Command)
	switch o.Command[0] {
	case "missing":
		return nil, fmt.Errorf("container of pod %s: %w", pod.Name, runtime.ErrNotFound)
	case "refuse":
		return url.Parse(n.url.String() + "/exec/unknown")
	}
	r, err := n.streaming.GetExec(&criv1.ExecRequest{ContainerId: o.Container, Cmd: o.Command, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
	return parse(r.GetUrl(), err)
}

func (n *fakeNode) AttachURL(_ context.Context, pod *corev1.Pod, o *corev1.PodAttachOptions) (*url.URL, error) {
	n.record("attach %s/%s", pod.Name, o.Container)
	r, err := n.streaming.GetAttach(&criv1.AttachRequest{ContainerId: o.Container, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
	return parse(r.GetUrl(), err)
}

func (n *fakeNode) PortForwardURL(_ context.Context, pod *corev1.Pod, o *corev1.PodPortForwardOptions) (*url.URL, error) {
	n.record("port-forward %s %v", pod.Name, o.Ports)
	r, err := n.streaming.GetPortForward(&criv1.PortForwardRequest{PodSandboxId: string(pod.UID), Port: o.Ports})
	return parse(r.GetUrl(), err)
}

func (n *fakeNode) RunCommand(_ context.Context, pod *corev1.Pod, container string, command []string) ([]byte, error) {
	n.record("run %s/%s %q", pod.Name, container, command)
	if command[0] == "false" {
		return []byte("output"), errors.New("exit code 1")
	}
	return []byte(strings.Join(command, "|")), nil
}

func (n *fakeNode) Checkpoint(_ context.Context, pod *corev1.Pod, container string, timeout time.Duration) (string, error) {
	n.record("checkpoint %s/%s %s", pod.Name, container, timeout)
	if timeout == time.Hour {
		return "", runtime.ErrUnsupported
	}
	return "/var/lib/kubelet/checkpoints/a.tar", nil
}

// fakeRuntime runs what the tests call commands.
type fakeRuntime struct{ n *fakeNode }

type exitError int

func (e exitError) Error() string   { return fmt.Sprintf("exit status %d", int(e)) }
func (e exitError) String() string  { return e.Error() }
func (e exitError) Exited() bool    { return true }
func (e exitError) ExitStatus() int { return int(e) }

func (f fakeRuntime) Exec(ctx context.Context, _ string, cmd []string, in io.Reader, out, errOut io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	defer func() { f.n.exited <- struct{}{} }()
	switch cmd[0] {
	case "cat":
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
		if errOut == nil { // a terminal
			return nil
		}
		_, err := io.WriteString(errOut, "end of input")
		return err
	case "size":
		size := <-resize
		_, err := fmt.Fprintf(out, "%dx%d", size.Width, size.Height)
		return err
	case "output":
		_, err := out.Write(make([]byte, 1<<20))
		return err
	case "head":
		_, _ = io.CopyN(io.Discard, in, 1<<16)
		return exitError(42)
	case "stall":
		_, _ = io.WriteString(out, "started")
		<-f.n.stall
		return nil
	case "flood":
		for {
			k, err := out.Write(make([]byte, 32<<10))
			if f.n.output.Add(int64(k)); err != nil {
				return err
			}
		}
	case "hang":
		_, _ = io.WriteString(out, "started")
		if in != nil {
			_, _ = io.Copy(io.Discard, in)
		} else {
			<-ctx.Done()
		}
		return nil
	}
	return exitError(42)
}

func (f fakeRuntime) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	return f.Exec(ctx, id, []string{"cat"}, in, out, errOut, tty, resize)
}

func (f fakeRuntime) PortForward(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	line := make([]byte, 4)
	if _, err := io.ReadFull(stream, line); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stream, "%d:%s", port, line)
	return err
}

// secureNode is a server with TLS, and what a client needs to use it.
type secureNode struct {
	*fakeNode
	ca   *authority
	addr string
	cfg  server.Config

	allow func(*authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error)
}

// tokens are the users of bearer tokens.
func tokens(r *http.Request) (*authenticationv1.UserInfo, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return nil, nil
	}
	if token == "good" || token == "powerless" {
		return &authenticationv1.UserInfo{Username: token}, nil
	}
	return nil, errors.New("token is not valid")
}

// serveSecure runs a server with TLS until the test ends.
func serveSecure(t *testing.T, change ...func(*server.Config)) *secureNode {
	t.Helper()
	n := &secureNode{fakeNode: newFakeNode(t), ca: newAuthority(t, "ca")}
	dir := t.TempDir()
	cert, key := n.ca.sign(t, x509.ExtKeyUsageServerAuth, "node-1")
	files := map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": n.ca.pem()}
	for name, b := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	cfg := n.config()
	var err error
	cfg.TLS, err = server.CertificateFiles{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}.TLS()
	require.NoError(t, err)
	cfg.Authenticators = []server.Authenticator{&server.ClientCertificates{CAFile: filepath.Join(dir, "ca.crt")}, server.AuthenticatorFunc(tokens)}
	cfg.Authorizer = server.AuthorizerFunc(func(_ context.Context, user *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) (bool, error) {
		n.record("authorize %s %s %s", user.Username, a.Verb, a.Subresource)
		if n.allow != nil {
			return n.allow(user, a)
		}
		return user.Username == "good" || user.Username == "apiserver", nil
	})
	for _, c := range change {
		c(&cfg)
	}
	n.cfg = cfg
	n.addr = serve(t, cfg)
	return n
}

// client returns one with certificates, if any.
func (n *secureNode) client(t *testing.T, certs ...tls.Certificate) *http.Client {
	t.Helper()
	c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: n.tls(certs...)}}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func (n *secureNode) tls(certs ...tls.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(n.ca.cert)
	return &tls.Config{RootCAs: pool, Certificates: certs}
}

// do returns the status and the body of a response.
func (n *secureNode) do(t *testing.T, c *http.Client, method, path, token string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://"+n.addr+path, http.NoBody)
	require.NoError(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header, string(b)
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
