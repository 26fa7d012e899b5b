//go:build linux

package main

import (
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// TestMain is the program itself in the processes that tests start.
func TestMain(m *testing.M) {
	if os.Getenv("SUBLET_EDGE_PROCESS") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const longRunTime = 3 * time.Minute // what takes as long as the runtime and the machine do

// nodeProcess is a node whose agent is a process of its own.
type nodeProcess struct {
	t     *testing.T
	fleet *fleet
	args  []string
	log   string

	cmd *exec.Cmd
}

func newNode(t *testing.T, runtime, root string, args ...string) *nodeProcess {
	t.Helper()
	remote := newFleet("")
	srv := httptest.NewServer(remote)
	t.Cleanup(srv.Close)
	n := &nodeProcess{t: t, fleet: remote, log: filepath.Join(t.TempDir(), "log"), args: append([]string{
		"-server", srv.URL + "/nodes/edge-1", "-token-file", tokenFile(t, remote.token), "-period", "100ms",
		"-root-dir", root, "-node-name", "edge-1", "-runtime", runtime,
	}, args...)}
	t.Cleanup(func() {
		n.stop(syscall.SIGKILL)
		if out, err := os.ReadFile(n.log); err == nil && t.Failed() {
			t.Logf("the agent's log:\n%s", out[max(0, len(out)-16<<10):])
		}
	})
	return n
}

// start starts the agent.
func (n *nodeProcess) start(more ...string) {
	n.t.Helper()
	out, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(n.t, err)
	defer out.Close()
	n.cmd = exec.Command(os.Args[0], append(n.args, more...)...)
	n.cmd.Env = append(os.Environ(), "SUBLET_EDGE_PROCESS=1")
	n.cmd.Stdout, n.cmd.Stderr = out, out
	require.NoError(n.t, n.cmd.Start())
}

// stop ends the agent with a signal, and returns how it ended.
func (n *nodeProcess) stop(sig syscall.Signal) error {
	if n.cmd == nil {
		return nil
	}
	_ = n.cmd.Process.Signal(sig) // it may have ended by itself
	err := n.cmd.Wait()
	n.cmd = nil
	return err
}

// requireRunning waits until the server knows that exactly these pods run.
func (n *nodeProcess) requireRunning(names ...string) {
	n.t.Helper()
	require.EventuallyWithT(n.t, func(c *assert.CollectT) { assert.ElementsMatch(c, names, n.fleet.running()) }, longRunTime, 50*time.Millisecond)
}

// containers returns the containers of a runtime, by pod and state.
func containers(t *testing.T, rt v1.RuntimeServiceClient) (found []string) {
	t.Helper()
	list, err := rt.ListContainers(t.Context(), &v1.ListContainersRequest{})
	require.NoError(t, err)
	for _, c := range list.GetContainers() {
		found = append(found, fmt.Sprintf("%s %s attempt %d created %d %s",
			c.GetLabels()["io.kubernetes.pod.name"], c.GetId(), c.GetMetadata().GetAttempt(), c.GetCreatedAt(), c.GetState()))
	}
	slices.Sort(found)
	return found
}

// simulatedRuntime serves a simulated runtime at a socket. It outlives the agents that use it.
func simulatedRuntime(t *testing.T) (endpoint string, rt v1.RuntimeServiceClient) {
	t.Helper()
	inside, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{}), Grace: -1})
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "edge-") //nolint:usetesting // the path of a socket must be short
	require.NoError(t, err)
	socket := filepath.Join(dir, "cri.sock")
	lis, err := net.Listen("unix", socket)
	require.NoError(t, err)
	g := grpc.NewServer()
	inside.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(lis) }()
	cc, err := cri.Dial("unix://" + socket)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, cc.Close())
		g.Stop()
		require.NoError(t, <-served)
		require.NoError(t, inside.Close())
		require.NoError(t, os.RemoveAll(dir))
	})
	return "unix://" + socket, v1.NewRuntimeServiceClient(cc)
}

func TestProcess_OnSimulatedRuntime(t *testing.T) {
	endpoint, rt := simulatedRuntime(t)
	n := newNode(t, endpoint, filepath.Join(t.TempDir(), "root"), "-cgroup-root", "")
	n.survives(rt, podManifest)
}

func TestProcess_OnContainerd(t *testing.T) {
	containerdtest.Each(t, func(t *testing.T, c *containerdtest.Node) {
		n := newNode(t, c.Endpoint(), filepath.Join(c.Shared, "root"), "-cgroup-root", c.CgroupParent)
		n.survives(v1.NewRuntimeServiceClient(c.Dial(t)), func(name string) string {
			return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: 2\n"+
				"  containers:\n  - {name: main, image: %q, imagePullPolicy: IfNotPresent, command: [sh, -c, \"trap 'exit 0' TERM; sleep 3600 & wait\"]}\n", name, c.Busybox)
		})
	})
}

// survives checks the whole life of an appliance: AG-4, SR-9, SL-7.
func (n *nodeProcess) survives(rt v1.RuntimeServiceClient, manifest func(string) string) {
	t := n.t
	n.fleet.set(func(s *fleet) { s.manifests = manifest("web") + manifest("db") })
	n.start()
	n.requireRunning("web-edge-1", "db-edge-1")
	before := containers(t, rt)
	require.Len(t, before, 2)

	// kill -9, and the server is away.
	n.fleet.set(func(s *fleet) { s.fail = away })
	require.Error(t, n.stop(syscall.SIGKILL))
	require.Equal(t, before, containers(t, rt), "pods do not need the agent")
	n.fleet.set(func(s *fleet) { clear(s.statuses); s.failed = 0 })
	n.start()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		n.fleet.set(func(s *fleet) { assert.NotZero(c, s.failed, "requests that failed") })
	}, longRunTime, 50*time.Millisecond)
	require.Equal(t, before, containers(t, rt))
	n.fleet.set(func(s *fleet) { s.fail = nil })
	n.requireRunning("web-edge-1", "db-edge-1")
	// A pod that was added later runs: by now the agent would have started the others again.
	n.fleet.set(func(s *fleet) { s.manifests += manifest("cache") })
	n.requireRunning("web-edge-1", "db-edge-1", "cache-edge-1")
	after := containers(t, rt)
	require.Len(t, after, 3)
	require.Subset(t, after, before, "the same containers, not started again")

	// SIGTERM leaves the pods, the next one drains them.
	require.NoError(t, n.stop(syscall.SIGTERM))
	require.Equal(t, after, containers(t, rt))
	n.fleet.set(func(s *fleet) { clear(s.statuses) })
	n.start("-drain")
	n.requireRunning("web-edge-1", "db-edge-1", "cache-edge-1")
	require.NoError(t, n.stop(syscall.SIGTERM))
	for _, c := range containers(t, rt) {
		require.NotContains(t, c, v1.ContainerState_CONTAINER_RUNNING.String())
	}
}

// Host processes end with the agent, within their grace period.
func TestProcess_OnHost(t *testing.T) {
	dir := t.TempDir()
	n := newNode(t, "host", filepath.Join(dir, "root"))
	n.fleet.set(func(s *fleet) {
		s.manifests = fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: shell}\nspec:\n  volumes: [{name: out, hostPath: {path: %q}}]\n"+
			"  containers:\n  - {name: main, image: none, volumeMounts: [{name: out, mountPath: %q}], command: [sh, -c, \"trap 'echo ended > %s; exit 0' TERM; echo > %s; while :; do sleep 0.1; done\"]}\n",
			dir, dir, filepath.Join(dir, "ended"), filepath.Join(dir, "started"))
	})
	n.start()
	n.requireRunning("shell-edge-1")
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.FileExists(c, filepath.Join(dir, "started")) }, longRunTime, 50*time.Millisecond)
	require.NoError(t, n.stop(syscall.SIGTERM))
	out, err := os.ReadFile(filepath.Join(dir, "ended"))
	require.NoError(t, err)
	require.Equal(t, "ended", strings.TrimSpace(string(out)))
}

// What a killed agent leaves of its host processes ends when the next one starts its first container.
func TestProcess_OnHostAfterAKill(t *testing.T) {
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "child")
	n := newNode(t, "host", filepath.Join(dir, "root"))
	n.fleet.set(func(s *fleet) {
		s.manifests = fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: shell}\nspec:\n  terminationGracePeriodSeconds: 1\n"+
			"  containers:\n  - {name: main, image: none, command: [sh, -c, \"sleep 3600 & echo $! > %s; wait\"]}\n", pidFile)
	})
	child := func() (pid string) {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			content, err := os.ReadFile(pidFile)
			assert.NoError(c, err)
			pid = strings.TrimSpace(string(content))
			assert.NotEmpty(c, pid)
		}, longRunTime, 50*time.Millisecond)
		return pid
	}
	runs := func(pid string) bool { // a zombie has no command line, and a process has none for a moment while it starts its program
		line, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		return err == nil && len(line) > 0
	}
	n.start()
	left := child()
	require.Error(t, n.stop(syscall.SIGKILL))
	require.Eventually(t, func() bool { return runs(left) }, longRunTime, 10*time.Millisecond)
	require.NoError(t, os.Remove(pidFile))
	n.start()
	next := child()
	require.Eventually(t, func() bool { return runs(next) }, longRunTime, 10*time.Millisecond)
	require.Eventually(t, func() bool { return !runs(left) }, longRunTime, 10*time.Millisecond) // it was killed, and may not have had the time to end
	require.NoError(t, n.stop(syscall.SIGTERM))
}

// A mistake is an error that says what to do.
func TestProcess_ReportsErrors(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-server", "http://fleet.example")
	cmd.Env = append(os.Environ(), "SUBLET_EDGE_PROCESS=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "must be https://host/path")
}
