package kube_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// envAgent is the configuration of an agent process, as JSON.
const envAgent = "SUBLET_KUBE_TEST_AGENT"

// TestMain runs an agent instead of tests if the environment has the configuration of one.
func TestMain(m *testing.M) {
	if cfg := os.Getenv(envAgent); cfg != "" {
		if err := runAgentProcess(cfg); err != nil {
			panic(err)
		}
		return
	}
	agenttest.Main(m)
}

// agentProcess is an agent in a process of its own, so that it can be killed.
type agentProcess struct {
	Kubeconfig, Socket, Root string
	MaxPods                  int

	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Scanner
}

// agentUsage is what an agent process has used since its start.
type agentUsage struct {
	Calls map[string]int // requests to the API server, by verb and resource
	RSS   int            // resident memory in KiB
}

// runAgentProcess runs the agent until its standard input is closed. Each line that it
// reads is answered by its usage.
func runAgentProcess(text string) error {
	var p agentProcess
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	cfg, err := kube.LoadKubeconfig(p.Kubeconfig)
	if err != nil {
		return err
	}
	calls := &countingTransport{calls: map[string]int{}}
	cfg.Wrap(calls.wrap)
	config, err := kube.ConfigFor(cfg)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	config.NodeName, config.Logger = nodeName, log
	k, err := kube.New(config)
	if err != nil {
		return err
	}
	opts, err := k.NodeOptions(kube.NodeConfig{}, filepath.Join(p.Root, "sources", "api"))
	if err != nil {
		return err
	}
	a, err := agent.New(append(opts, agent.WithRootDir(p.Root), agent.WithLogger(log), agent.WithRuntimeEndpoint("unix://"+p.Socket),
		agent.WithNode(node.Config{DisableCgroups: true, MaxPods: p.MaxPods}))...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			_ = json.NewEncoder(os.Stdout).Encode(agentUsage{Calls: calls.take(), RSS: residentMemory()})
		}
	}()
	return a.Run(ctx)
}

// residentMemory returns that of this process in KiB, 0 if the system does not tell.
func residentMemory() (kib int) {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			_, _ = fmt.Sscan(value, &kib)
		}
	}
	return kib
}

// countingTransport counts the requests to the API server.
type countingTransport struct {
	http.RoundTripper

	mu    sync.Mutex // guards calls
	calls map[string]int
}

func (c *countingTransport) wrap(rt http.RoundTripper) http.RoundTripper {
	c.RoundTripper = rt
	return c
}

func (c *countingTransport) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = map[string]int{}
	return calls
}

// RoundTrip implements http.RoundTripper.
func (c *countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if i := 2; len(parts) > i && parts[0] == "apis" {
		parts = parts[1:]
	}
	parts = parts[min(2, len(parts)):] // without the API group and version
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) > 1 {
		parts[1] = "…" // any name
	}
	c.mu.Lock()
	c.calls[r.Method+" "+strings.Join(parts, "/")]++
	c.mu.Unlock()
	return c.RoundTripper.RoundTrip(r)
}

// newAgentProcess returns a node of the server that is not started.
func newAgentProcess(t *testing.T, server *kubetest.APIServer, socket string) *agentProcess {
	t.Helper()
	dir := t.TempDir()
	cfg := server.Config("system:node:"+nodeName, "system:nodes")
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	file.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	file.CurrentContext = "x"
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*file, kubeconfig))
	return &agentProcess{Kubeconfig: kubeconfig, Socket: socket, Root: filepath.Join(dir, "root"), t: t}
}

func (p *agentProcess) start() {
	p.t.Helper()
	cfg, err := json.Marshal(p)
	require.NoError(p.t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envAgent+"="+string(cfg))
	cmd.Stderr = os.Stderr
	p.stdin, err = cmd.StdinPipe()
	require.NoError(p.t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(p.t, err)
	p.stdout = bufio.NewScanner(stdout)
	require.NoError(p.t, cmd.Start())
	p.cmd = cmd
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
}

// usage returns what the agent has used since the last call.
func (p *agentProcess) usage() (u agentUsage) {
	p.t.Helper()
	_, err := io.WriteString(p.stdin, "\n")
	require.NoError(p.t, err)
	require.True(p.t, p.stdout.Scan(), "the agent has ended")
	require.NoError(p.t, json.Unmarshal(p.stdout.Bytes(), &u))
	return u
}

// kill ends the agent as SIGKILL does.
func (p *agentProcess) kill() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Kill())
	_ = p.cmd.Wait() // killed
}

// testMachine is a runtime that agent processes reach by a socket, as a daemon of the machine.
type testMachine struct {
	t      *testing.T
	socket string

	rt     *embedded.Runtime
	server *grpc.Server
	client v1.RuntimeServiceClient
	starts *startCounter
}

func newTestMachine(t *testing.T) *testMachine {
	m := &testMachine{t: t, socket: filepath.Join(t.TempDir(), "r.sock")}
	m.boot()
	t.Cleanup(m.halt)
	return m
}

// boot starts the runtime, without any pod.
func (m *testMachine) boot() {
	m.t.Helper()
	m.starts = &startCounter{Executor: simulated.New(simulated.Config{}), running: map[string]int{}, started: map[string]int{}}
	rt, err := embedded.New(embedded.Config{Executor: m.starts, EventBufferSize: 1 << 20})
	require.NoError(m.t, err)
	m.rt, m.server = rt, grpc.NewServer()
	rt.Register(m.server)
	lis, err := net.Listen("unix", m.socket)
	require.NoError(m.t, err)
	go func() { _ = m.server.Serve(lis) }()
	conn, err := rt.Dial()
	require.NoError(m.t, err)
	m.t.Cleanup(func() { _ = conn.Close() })
	m.client = v1.NewRuntimeServiceClient(conn)
}

// halt ends the runtime and all that runs in it.
func (m *testMachine) halt() {
	m.server.Stop()
	_ = m.rt.Close() // a second time at the end of the test
}

// containers returns the newest container of each pod by the name of the pod.
func (m *testMachine) containers() map[string]*v1.Container {
	m.t.Helper()
	list, err := m.client.ListContainers(context.Background(), &v1.ListContainersRequest{})
	require.NoError(m.t, err)
	newest := map[string]*v1.Container{}
	for _, c := range list.GetContainers() {
		name := c.GetLabels()["io.kubernetes.pod.name"]
		if newest[name] == nil || newest[name].GetCreatedAt() < c.GetCreatedAt() {
			newest[name] = c
		}
	}
	return newest
}

// crash ends a container, as if its process did.
func (m *testMachine) crash(id string) {
	m.t.Helper()
	_, err := m.client.StopContainer(context.Background(), &v1.StopContainerRequest{ContainerId: id})
	require.NoError(m.t, err)
}

// startCounter counts the processes of each container of a pod.
type startCounter struct {
	*simulated.Executor

	mu      sync.Mutex // guards the fields below
	running map[string]int
	started map[string]int // by the name of the pod
	twice   []string       // containers that ran twice at once
}

// Start implements embedded.Executor.
func (s *startCounter) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	pod := c.Pod.GetMetadata()
	key := pod.GetUid() + "/" + c.Config.GetMetadata().GetName()
	s.count(key, pod.GetName(), 1)
	p, err := s.Executor.Start(ctx, c, sio, func(e embedded.Exit) {
		s.count(key, "", -1)
		exited(e)
	})
	if err != nil {
		s.count(key, "", -1)
	}
	return p, err
}

func (s *startCounter) count(key, pod string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pod != "" {
		s.started[pod]++
	}
	if s.running[key] += n; s.running[key] > 1 {
		s.twice = append(s.twice, fmt.Sprintf("%s of pod %s at %v", key, pod, time.Now()))
	}
}

// startsOf returns how often the container of a pod was started.
func (s *startCounter) startsOf(pod string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started[pod]
}

func (s *startCounter) requireOnce(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.twice, "ran twice at once")
}
