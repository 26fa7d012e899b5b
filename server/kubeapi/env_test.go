package kubeapi_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podwatch"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
	"github.com/sublet-dev/agent/stats"
)

// A SPDY client ends by itself within seconds of its connection.
func TestMain(m *testing.M) {
	leaktest.Main(m,
		goleak.IgnoreAnyFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"),
		goleak.IgnoreAnyFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

const (
	nodeName = "edge-1"
	// testTimeout bounds what does not depend on time.
	testTimeout = time.Minute
)

// env is an API of a fake node, with clients.
type env struct {
	t      *testing.T
	url    string
	dir    string // of store
	http   *http.Client
	config *rest.Config
	client kubernetes.Interface
	store  *kubeapi.Store
	events *kubeapi.Events
	// notify makes Config.Watch yield.
	notify chan struct{}
	// restarts has each RestartPod, which returns the value that is sent to restarted.
	restarts  chan *corev1.Pod
	restarted chan error

	mu    sync.Mutex // guards the fields below
	pods  []*corev1.Pod
	set   podsource.Set
	allow func(*authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error)
}

// newEnv serves an API with all that it can have. edit may change that.
func newEnv(t *testing.T, edit func(*kubeapi.Config, *server.Config)) *env {
	t.Helper()
	dir := t.TempDir()
	e := &env{
		t: t, dir: dir, events: kubeapi.NewEvents(), store: kubeapi.NewStore(dir), notify: make(chan struct{}, 1),
		restarts: make(chan *corev1.Pod, 10), restarted: make(chan error, 10),
	}
	cfg := kubeapi.Config{
		NodeName: nodeName, Pods: e.allPods, Watch: e.watch, Operator: e, Events: e.events, Store: e.store,
		Node: func(context.Context) (*corev1.Node, error) {
			return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, nil
		},
		Objects: func() []podspec.Object {
			return []podspec.Object{
				{Ref: podspec.Ref{Kind: podspec.ConfigMap, Namespace: "shop", Name: "conf"}, Data: map[string][]byte{"a": []byte("b"), "raw": {0xff}}},
				{Ref: podspec.Ref{Kind: "Secret", Namespace: "shop", Name: "password"}, Data: map[string][]byte{"a": []byte("hidden")}},
			}
		},
		Stats: func(context.Context) (stats.Summary, error) { return stats.Summary{}, nil },
	}
	srv := server.Config{
		Addr: "127.0.0.1:0", NodeName: nodeName, TLS: &tls.Config{}, //nolint:gosec // that of httptest is used
		Authenticators: []server.Authenticator{server.AuthenticatorFunc(authenticate)}, Authorizer: server.AuthorizerFunc(e.authorize),
		Pods: e.allPods, Logs: fakeLogs{},
	}
	if edit != nil {
		edit(&cfg, &srv)
	}
	api, err := kubeapi.New(cfg)
	require.NoError(t, err)
	srv.KubeAPI = api
	s, err := server.New(srv)
	require.NoError(t, err)
	e.serve(s, api)
	return e
}

// serve runs the server, the API and, in place of an agent, the source.
func (e *env) serve(s http.Handler, api *kubeapi.API) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(e.t, api.Run(ctx)) })
	loaded := make(chan struct{}, 1)
	wg.Go(func() {
		assert.NoError(e.t, e.store.Watch(ctx, func(set podsource.Set) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.set = set
			select {
			case loaded <- struct{}{}:
			default:
			}
		}))
	})
	<-loaded
	ts := httptest.NewUnstartedServer(s)
	ts.TLS = &tls.Config{ClientAuth: tls.RequestClientCert} //nolint:gosec // of a test
	ts.StartTLS()
	e.t.Cleanup(func() {
		cancel()
		ts.CloseClientConnections()
		ts.Close()
		wg.Wait()
	})
	e.url, e.http = ts.URL, ts.Client()
	e.config = &rest.Config{
		Host: ts.URL, BearerToken: "good", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ts.Certificate().Raw})},
	}
	client, err := kubernetes.NewForConfig(e.config)
	require.NoError(e.t, err)
	e.client = client
}

func (e *env) allPods() []*corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*corev1.Pod(nil), e.pods...)
}

// setPods replaces the pods of the node.
func (e *env) setPods(pods ...*corev1.Pod) {
	e.mu.Lock()
	e.pods = pods
	e.mu.Unlock()
	select {
	case e.notify <- struct{}{}:
	default:
	}
}

// sourcePod returns the pod that the store has delivered to the agent, or nil.
func (e *env) sourcePod(name string) *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.set.Pods {
		if m.Pod.Name == name {
			return m.Pod
		}
	}
	return nil
}

func (e *env) watch(ctx context.Context) iter.Seq[podwatch.Event] {
	return func(yield func(podwatch.Event) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-e.notify:
				if !yield(podwatch.Event{}) {
					return
				}
			}
		}
	}
}

// RestartPod implements kubeapi.Operator.
func (e *env) RestartPod(ctx context.Context, pod *corev1.Pod) error {
	e.restarts <- pod
	select {
	case err := <-e.restarted:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func authenticate(r *http.Request) (*authenticationv1.UserInfo, error) {
	switch r.Header.Get("Authorization") {
	case "":
		return nil, nil //nolint:nilnil // no token, no user
	case "Bearer good":
		return &authenticationv1.UserInfo{Username: "owner"}, nil
	}
	return nil, errors.New("invalid token")
}

func (e *env) authorize(_ context.Context, user *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.allow == nil {
		return true, nil
	}
	return e.allow(user, a)
}

// response is one of the API.
type response struct {
	code   int
	header http.Header
	body   string
}

// status decodes a Status.
func (r response) status(t *testing.T) metav1.Status {
	t.Helper()
	var st metav1.Status
	require.NoError(t, json.Unmarshal([]byte(r.body), &st), r.body)
	require.Equal(t, "Status", st.Kind, r.body)
	return st
}

// do sends a request; header has names and values.
func (e *env) do(method, path, body string, header ...string) response {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), method, e.url+path, bytes.NewBufferString(body))
	require.NoError(e.t, err)
	req.Header.Set("Authorization", "Bearer good")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := e.http.Do(req)
	require.NoError(e.t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(e.t, err)
	return response{res.StatusCode, res.Header, string(b)}
}

func (e *env) get(path string, header ...string) response {
	e.t.Helper()
	return e.do(http.MethodGet, path, "", header...)
}

// eventually polls with a generous bound.
func eventually(t *testing.T, condition func() bool, text string) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, 5*time.Millisecond, text)
}

// startTime is that of all pods.
func startTime() time.Time { return time.Unix(1_600_000_000, 0) }

// staticPod is one of a file on the node.
func staticPod(name string, labels map[string]string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Labels: labels},
		Spec:       corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "main", Image: "app:1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: startTime()}},
	}
	podspec.Default(pod)
	podspec.AnnotateSource(pod, "file", startTime())
	return pod
}

// fakeLogs is a server.LogReader.
type fakeLogs struct{}

func (fakeLogs) ReadLog(_ context.Context, pod *corev1.Pod, o *corev1.PodLogOptions, stdout, _ io.Writer) error {
	if o.Previous {
		return errors.New("previous terminated container not found")
	}
	_, err := fmt.Fprintf(stdout, "log of %s %s\n", pod.Name, o.Container)
	return err
}

func manifest(name string) string {
	return strings.ReplaceAll(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME","labels":{"app":"NAME"}},"spec":{"terminationGracePeriodSeconds":7,"containers":[{"name":"main","image":"app:1"}]}}`, "NAME", name)
}

// values encodes a query.
func values(pairs ...string) string {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Add(pairs[i], pairs[i+1])
	}
	return "?" + v.Encode()
}

func summaryOf(s stats.Summary) func(context.Context) (stats.Summary, error) {
	return func(context.Context) (stats.Summary, error) { return s, nil }
}
