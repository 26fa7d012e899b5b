package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

func TestParse_PodsAPISocket(t *testing.T) {
	_, err := parse([]string{"-manifests", "/m", "-pods-api-socket", "s"}, &bytes.Buffer{})
	require.ErrorContains(t, err, `-pods-api-socket "s": must be an absolute path`)
	f, err := parse([]string{"-manifests", "/m", "-pods-api-socket", "/s"}, &bytes.Buffer{})
	require.NoError(t, err)
	var out bytes.Buffer
	require.Len(t, f.podsAPI.options(f.config.effective.PodsAPI(), nil, f.logger(&out)), 1)
	f, err = parse([]string{"-manifests", "/m", "-pods-api-socket", "/s", "-feature-gates", "PodsAPI=false"}, &bytes.Buffer{})
	require.NoError(t, err)
	require.Empty(t, f.podsAPI.options(f.config.effective.PodsAPI(), nil, f.logger(&out)))
	require.Contains(t, out.String(), "pods API not served: its feature gate is off")
}

// startPodsAPI runs the agent with the manifests of a directory and more flags. It returns a client of its pods API, and what
// stops both.
func startPodsAPI(t *testing.T, dir string, more ...string) (c api.PodsClient, stop func()) {
	t.Helper()
	socket := filepath.Join(dir, "pods-api", "kubelet.sock")
	args := append([]string{
		"-root-dir", filepath.Join(dir, "r"), "-pod-logs-dir", filepath.Join(dir, "l"), "-listen=", "-hostname-override", "n", "-pods-api-socket", socket,
	}, more...)
	f, err := parse(args, &bytes.Buffer{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, f, &bytes.Buffer{}) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	return api.NewPodsClient(conn), func() {
		require.NoError(t, conn.Close())
		cancel()
		require.NoError(t, <-done)
		families, err := f.metrics.agent.Gather()
		require.NoError(t, err)
		var names []string
		for _, family := range families {
			names = append(names, family.GetName())
		}
		require.Contains(t, names, "kubelet_pod_requests_total")
	}
}

// watchPods watches once the pods are known. The result waits for an event.
func watchPods(t *testing.T, c api.PodsClient) (await func(matches func(api.EventType, *corev1.Pod) bool) *corev1.Pod) {
	t.Helper()
	type result struct {
		e   *api.WatchPodsEvent
		err error
	}
	var stream grpc.ServerStreamingClient[api.WatchPodsEvent]
	var first result
	require.Eventually(t, func() bool {
		var err error
		stream, err = c.WatchPods(t.Context(), &api.WatchPodsRequest{})
		require.NoError(t, err)
		first.e, first.err = stream.Recv()
		return status.Code(first.err) != codes.FailedPrecondition
	}, time.Minute, 10*time.Millisecond)
	return func(matches func(api.EventType, *corev1.Pod) bool) *corev1.Pod {
		t.Helper()
		for {
			got := first
			if got == (result{}) {
				got.e, got.err = stream.Recv()
			}
			first = result{}
			require.NoError(t, got.err)
			var pod corev1.Pod
			require.NoError(t, pod.Unmarshal(got.e.GetPod()))
			if matches(got.e.GetType(), &pod) {
				return &pod
			}
		}
	}
}

// SV-15: through a socket, as a program of the node sees pods come, change and go, also over a restart of the agent.
func TestRun_ServesPodsAPI(t *testing.T) {
	dir, err := os.MkdirTemp("", "na") //nolint:usetesting // a short path for the sockets
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	manifests := filepath.Join(dir, "m")
	require.NoError(t, os.Mkdir(manifests, 0o700))
	write := func(name string) {
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", annotations: {sim.sublet.dev/run-for: 1h}}\nspec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: nginx:1}]}\n"
		require.NoError(t, os.WriteFile(filepath.Join(manifests, name+".yaml"), []byte(text), 0o600))
	}
	write("web")
	c, stop := startPodsAPI(t, dir, "-manifests", manifests)
	await := watchPods(t, c)
	await(func(kind api.EventType, _ *corev1.Pod) bool { return kind == api.EventType_INITIAL_SYNC_COMPLETE })
	write("db")
	kinds := map[api.EventType]bool{}
	db := await(func(kind api.EventType, p *corev1.Pod) bool {
		kinds[kind] = kinds[kind] || p.Name == "db-n"
		return p.Name == "db-n" && p.Status.Phase == corev1.PodRunning
	})
	require.True(t, kinds[api.EventType_ADDED])
	got, err := c.GetPod(t.Context(), &api.GetPodRequest{PodUID: string(db.UID)})
	require.NoError(t, err)
	var pod corev1.Pod
	require.NoError(t, pod.Unmarshal(got.GetPod()))
	require.Equal(t, "db-n Running", pod.Name+" "+string(pod.Status.Phase))
	_, err = c.GetPod(t.Context(), &api.GetPodRequest{PodUID: "other"})
	require.Equal(t, codes.NotFound, status.Code(err))
	require.NoError(t, os.Remove(filepath.Join(manifests, "db.yaml")))
	await(func(kind api.EventType, p *corev1.Pod) bool { return kind == api.EventType_DELETED && p.Name == "db-n" })
	require.Eventually(t, func() bool {
		list, err := c.ListPods(t.Context(), &api.ListPodsRequest{})
		return err == nil && len(list.GetPods()) == 1
	}, time.Minute, 20*time.Millisecond)
	stop()

	require.NoError(t, os.Remove(filepath.Join(manifests, "web.yaml")))
	write("new")
	c, stop = startPodsAPI(t, dir, "-manifests", manifests)
	require.Eventually(t, func() bool { // web went while no agent ran
		list, err := c.ListPods(t.Context(), &api.ListPodsRequest{})
		if err != nil || len(list.GetPods()) != 1 {
			return false
		}
		require.NoError(t, pod.Unmarshal(list.GetPods()[0]))
		return pod.Name == "new-n"
	}, time.Minute, 20*time.Millisecond)
	stop()

	c, stop = startPodsAPI(t, dir, "-manifest-url", "http://127.0.0.1:1/")
	_, err = c.ListPods(t.Context(), &api.ListPodsRequest{})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "waiting for source http")
	stop()
}
