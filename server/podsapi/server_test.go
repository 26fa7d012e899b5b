package podsapi_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/internal/unixsocket"
	"github.com/sublet-dev/agent/podwatch"
	"github.com/sublet-dev/agent/server/podsapi"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// node is the pods of a node, and what tells of their changes.
type node struct {
	hub  podwatch.Hub
	path string // of the socket, by start

	mu   sync.Mutex
	pods map[types.UID]*corev1.Pod
}

func (n *node) Pods() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.pods))
}

// restore adds a pod of which nothing was reported yet.
func (n *node) restore(pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pods == nil {
		n.pods = map[types.UID]*corev1.Pod{}
	}
	n.pods[pod.UID] = pod
}

func (n *node) set(pod *corev1.Pod) {
	n.restore(pod)
	_ = n.hub.SetStatus(context.Background(), pod, pod.Status)
}

func (n *node) remove(pod *corev1.Pod) {
	n.mu.Lock()
	delete(n.pods, pod.UID)
	n.mu.Unlock()
	_ = n.hub.DeleteStatus(context.Background(), pod)
}

// pod returns a pod whose UID is its name in capitals.
func pod(name string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, UID: types.UID(strings.ToUpper(name))},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx:1"}}},
		Status:     corev1.PodStatus{Phase: phase},
	}
}

// start runs a Server of the node and returns a client of it, and what stops the Server.
func start(t *testing.T, n *node, cfg podsapi.Config) (client api.PodsClient, stop func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pa") //nolint:usetesting // the name of the test would make it too long
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	cfg.Path, cfg.Pods = filepath.Join(dir, "pods-api", "kubelet.sock"), n.Pods
	n.path = cfg.Path
	if cfg.WatchList == nil {
		cfg.WatchList = n.hub.WatchList
	}
	s, err := podsapi.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-done)
		assert.NoFileExists(t, cfg.Path)
	})
	t.Cleanup(stop)
	return connect(t, cfg.Path), stop
}

// connect returns a client with a connection of its own.
func connect(t *testing.T, path string) api.PodsClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	return api.NewPodsClient(conn)
}

func decode(t *testing.T, b []byte) *corev1.Pod {
	t.Helper()
	var out corev1.Pod
	require.NoError(t, out.Unmarshal(b))
	return &out
}

func TestServer_ListsAndGetsPods(t *testing.T) {
	var n node
	web, db := pod("web", corev1.PodRunning), pod("db", corev1.PodSucceeded)
	n.set(web)
	n.set(db)
	c, _ := start(t, &n, podsapi.Config{})
	list, err := c.ListPods(t.Context(), &api.ListPodsRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetPods(), 2)
	require.Equal(t, db, decode(t, list.GetPods()[0]), "with its status, also one that has ended")
	require.Equal(t, web, decode(t, list.GetPods()[1]))
	got, err := c.GetPod(t.Context(), &api.GetPodRequest{PodUID: "WEB"})
	require.NoError(t, err)
	require.Equal(t, web, decode(t, got.GetPod()))
	for _, unknown := range []string{"web", "OTHER", ""} {
		_, err = c.GetPod(t.Context(), &api.GetPodRequest{PodUID: unknown})
		require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	}
}

// SV-15: a list that lacks pods is an error.
func TestServer_WaitsForPods(t *testing.T) {
	var n node
	var mu sync.Mutex
	err := errors.New("waiting for source api")
	asked := 0
	c, _ := start(t, &n, podsapi.Config{Ready: func() error {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return err
	}})
	call := func() []error {
		_, errList := c.ListPods(t.Context(), &api.ListPodsRequest{})
		_, errGet := c.GetPod(t.Context(), &api.GetPodRequest{PodUID: "WEB"})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, errWatch := c.WatchPods(ctx, &api.WatchPodsRequest{})
		if errWatch == nil {
			_, errWatch = stream.Recv()
		}
		return []error{errList, errGet, errWatch}
	}
	for _, err := range call() {
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
		require.ErrorContains(t, err, "the pods of this node are not known yet: waiting for source api")
	}
	mu.Lock()
	err, asked = nil, 0
	mu.Unlock()
	errs := call()
	require.NoError(t, errs[0])
	require.Equal(t, codes.NotFound, status.Code(errs[1]))
	require.NoError(t, errs[2])
	require.Equal(t, 1, asked, "what is known stays known")
}

func TestServer_LimitsRequests(t *testing.T) {
	c, _ := start(t, new(node), podsapi.Config{})
	require.Eventually(t, func() bool {
		_, err := c.ListPods(t.Context(), &api.ListPodsRequest{})
		return status.Code(err) == codes.ResourceExhausted
	}, time.Minute, time.Nanosecond)
}

func TestRun_ServesOnlyThisUser(t *testing.T) {
	dir, err := os.MkdirTemp("", "pa") //nolint:usetesting // the name of the test would make it too long
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	var n node
	cfg := podsapi.Config{Path: filepath.Join(dir, "pods-api", "kubelet.sock"), Pods: n.Pods, WatchList: n.hub.WatchList}
	s, err := podsapi.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	require.Eventually(t, func() bool { return unixsocket.IsServed(ctx, cfg.Path) }, time.Minute, 10*time.Millisecond)
	for path, mode := range map[string]os.FileMode{cfg.Path: 0o600, filepath.Dir(cfg.Path): 0o700} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), path)
	}
	require.ErrorIs(t, s.Run(ctx), unixsocket.ErrInUse, "such as a kubelet")
	cancel()
	require.NoError(t, <-done)
}

func TestRun_NeedsItsDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	var n node
	s, err := podsapi.New(podsapi.Config{Path: filepath.Join(file, "s"), Pods: n.Pods, WatchList: n.hub.WatchList})
	require.NoError(t, err)
	var failed *os.PathError
	require.ErrorAs(t, s.Run(t.Context()), &failed)
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := podsapi.New(podsapi.Config{Path: "relative"})
	for _, want := range []string{"Config.Path", "Config.Pods", "Config.WatchList"} {
		require.ErrorContains(t, err, want)
	}
	_, err = podsapi.New(podsapi.Config{Path: "/" + strings.Repeat("x", 107)})
	require.ErrorContains(t, err, "too long")
}

// text is an event in a line: its type, and the name, phase, and labels of its pod.
func text(t *testing.T, e *api.WatchPodsEvent) string {
	t.Helper()
	if e.GetPod() == nil {
		return e.GetType().String()
	}
	p := decode(t, e.GetPod())
	out := []string{e.GetType().String(), p.Name, cmp.Or(string(p.Status.Phase), "-")}
	for _, k := range slices.Sorted(maps.Keys(p.Labels)) {
		out = append(out, k+"="+p.Labels[k])
	}
	return strings.Join(out, " ")
}
