package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/leaktest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "-pause" || os.Args[1] == "-serve") {
		main() // as a container of ours
		return
	}
	leaktest.Main(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

func TestRun_ServesTheCRI(t *testing.T) {
	for _, executor := range []string{"host", "simulated"} {
		t.Run(executor, func(t *testing.T) {
			dir := t.TempDir()
			socket := filepath.Join(dir, "cri.sock")
			ctx := t.Context()
			rs, is := serve(t, dir, executor)
			var err error

			_, err = is.PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "example.com/any/name:1"}})
			require.NoError(t, err)
			sb, err := rs.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{
				Metadata: &v1.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "u"},
			}})
			require.NoError(t, err)
			c, err := rs.CreateContainer(ctx, &v1.CreateContainerRequest{PodSandboxId: sb.GetPodSandboxId(), Config: &v1.ContainerConfig{
				Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: "example.com/any/name:1"},
			}})
			require.NoError(t, err)
			_, err = rs.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: c.GetContainerId()})
			require.NoError(t, err)
			out, err := rs.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: c.GetContainerId(), Cmd: []string{"echo", "hi"}})
			require.NoError(t, err)
			assert.Equal(t, "hi\n", string(out.GetStdout()))

			st, err := os.Stat(socket)
			require.NoError(t, err)
			assert.Zero(t, st.Mode().Perm()&0o077, "others can speak to the runtime")
			err = run(ctx, options{listen: "unix://" + socket, executor: executor, root: dir, stream: "127.0.0.1:0"}, slog.New(slog.DiscardHandler))
			assert.ErrorContains(t, err, "already served by another process")
		})
	}
}

// serve runs the program with its socket in dir.
func serve(t *testing.T, dir, executor string) (v1.RuntimeServiceClient, v1.ImageServiceClient) {
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o711)) // containers may run as others
	socket := filepath.Join(dir, "cri.sock")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		o := options{listen: "unix://" + socket, executor: executor, root: dir, stream: "127.0.0.1:0"}
		assert.NoError(t, run(ctx, o, slog.New(slog.DiscardHandler)))
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return dial(t, socket)
}

// dial connects to the program, also before it listens.
func dial(t *testing.T, socket string) (v1.RuntimeServiceClient, v1.ImageServiceClient) {
	cc, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return v1.NewRuntimeServiceClient(cc), v1.NewImageServiceClient(cc)
}

// Without -root the temporary root directory is removed at the end.
func TestRun_RemovesTheTemporaryRoot(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	o := options{listen: "unix://" + filepath.Join(t.TempDir(), "cri.sock"), executor: "host", stream: "127.0.0.1:0"}
	go func() { done <- run(ctx, o, slog.New(slog.DiscardHandler)) }()
	require.Eventually(t, func() bool {
		programs, err := filepath.Glob(filepath.Join(dir, "embeddedcri-*", "bin", "top"))
		return err == nil && len(programs) == 1
	}, time.Minute, 5*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// Containers get their grace period at the end.
func TestRun_StopsContainers(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o711))
	socket, file := filepath.Join(dir, "cri.sock"), filepath.Join(dir, "stopped")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	o := options{listen: "unix://" + socket, executor: "host", root: dir, stream: "127.0.0.1:0"}
	go func() { done <- run(ctx, o, slog.New(slog.DiscardHandler)) }()
	rs, is := dial(t, socket)
	image := &v1.ImageSpec{Image: "example.com/any/name:1"}
	_, err := is.PullImage(t.Context(), &v1.PullImageRequest{Image: image})
	require.NoError(t, err)
	sb, err := rs.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "u"},
	}})
	require.NoError(t, err)
	c, err := rs.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: sb.GetPodSandboxId(), Config: &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "c"}, Image: image,
		Annotations: map[string]string{"io.kubernetes.pod.terminationGracePeriod": "30"},
		Command:     []string{"sh", "-c", "trap 'sleep 0.5; echo x > " + file + "; exit' TERM; touch " + file + "; while :; do sleep 0.01; done"},
	}})
	require.NoError(t, err)
	_, err = rs.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: c.GetContainerId()})
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, err := os.Stat(file); return err == nil }, time.Minute, 5*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "x\n", string(text), "the container got no time to end")
}

func TestRun_RejectsInvalidFlags(t *testing.T) {
	for want, o := range map[string]options{
		"-listen":   {listen: "tcp://1.2.3.4:5", executor: "host"},
		"-executor": {listen: "unix:///tmp/x.sock", executor: "docker"},
	} {
		assert.ErrorContains(t, run(t.Context(), o, slog.New(slog.DiscardHandler)), want)
	}
}

func TestShims_ReplaceTop(t *testing.T) {
	root := filepath.Join(t.TempDir(), "it's mine")
	self := filepath.Join(t.TempDir(), "built")
	require.NoError(t, os.WriteFile(self, []byte("a program"), 0o700))
	for range 2 { // the second time after a crash
		bin, program, err := shims(root, self)
		require.NoError(t, err)
		st, err := os.Stat(filepath.Join(bin, "top"))
		require.NoError(t, err)
		assert.NotZero(t, st.Mode()&0o111)
		text, err := os.ReadFile(filepath.Join(bin, "top"))
		require.NoError(t, err)
		assert.Contains(t, string(text), `it'\''s mine/bin/embeddedcri' -pause`)
		st, err = os.Stat(program)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o755), st.Mode().Perm(), "every user can run it")
		text, err = os.ReadFile(program)
		require.NoError(t, err)
		assert.Equal(t, "a program", string(text))
	}
}
