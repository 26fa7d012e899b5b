//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// envKubelet is the path of a kubelet to compare with. It runs without an API server.
const envKubelet = "SUBLET_BENCH_KUBELET"

// nodeProcess is a program that runs the pods of a manifest directory: the agent or a kubelet. It is measured from outside.
type nodeProcess struct {
	node      *containerdtest.Node
	rt        cri.RuntimeServiceClient
	dir       string
	manifests string
	proxy     *runtimetest.Proxy // counts calls; nil: the program calls the runtime directly
	endpoint  string
	command   func(b *testing.B) []string
	ready     func() bool // nil: at once

	cmd *exec.Cmd
	log *os.File
}

func newNodeProcess(b *testing.B, r *benchEnv, name string) *nodeProcess {
	b.Helper()
	dir := filepath.Join(r.node.Shared, name)
	p := &nodeProcess{
		node: r.node, rt: cri.NewRuntimeServiceClient(r.cc), dir: dir, manifests: filepath.Join(dir, "manifests"), endpoint: r.node.Endpoint(),
	}
	require.NoError(b, os.MkdirAll(p.manifests, 0o755))
	return p
}

// countCalls makes the program call the runtime through a proxy.
func (p *nodeProcess) countCalls(b *testing.B) {
	proxy, err := runtimetest.NewProxy(p.node.Dial(b), 1)
	require.NoError(b, err)
	socket := filepath.Join(p.dir, "proxy.sock")
	lis, err := net.Listen("unix", socket)
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- proxy.Serve(ctx, lis) }()
	b.Cleanup(func() {
		cancel()
		<-done
	})
	p.proxy, p.endpoint = proxy, "unix://"+socket
}

// calls returns the number of calls so far.
func (p *nodeProcess) calls() (n int) {
	for _, c := range p.proxy.CallCounts() {
		n += c
	}
	return n
}

// newAgentProcess returns the agent, built for this. Its flags make a client of it that does nothing, or page it out.
func newAgentProcess(b *testing.B, r *benchEnv, maxPods int, flags ...string) *nodeProcess {
	b.Helper()
	p := newNodeProcess(b, r, "agent-process"+strings.Join(flags, ""))
	p.command = func(b *testing.B) []string {
		binary := filepath.Join(p.node.Shared, "agentprocess") // one for all: the next build finds it up to date
		build := exec.Command("go", "build", "-o", binary)
		if os.Getenv(envSmoke) == "" { // as docs/embed.md advises; the race detector needs cgo
			build.Args = append(build.Args, "-race=false", "-tags", "grpcnotrace")
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		build.Args = append(build.Args, "github.com/sublet-dev/agent/test/bench/agentprocess")
		out, err := build.CombinedOutput()
		require.NoError(b, err, "%s", out)
		return append([]string{
			binary, "-endpoint", p.endpoint, "-root-dir", filepath.Join(p.dir, "root"), "-manifests", p.manifests,
			"-cgroup-root", p.node.CgroupParent, "-max-pods", strconv.Itoa(maxPods),
		}, flags...)
	}
	return p
}

// newKubelet returns the kubelet that the environment names, or nil.
func newKubelet(b *testing.B, r *benchEnv, maxPods int) *nodeProcess {
	b.Helper()
	binary := os.Getenv(envKubelet)
	if binary == "" || r.node == nil {
		b.Logf("%s names no kubelet to compare with, or the runtime is embedded", envKubelet)
		return nil
	}
	p := newNodeProcess(b, r, "kubelet")
	health := freeAddress(b)
	p.ready = func() bool {
		resp, err := http.Get("http://" + health + "/healthz") //nolint:noctx // the poll of a benchmark
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	p.command = func(b *testing.B) []string {
		makeCgroups(b, p.node.CgroupParent)
		host, port, err := net.SplitHostPort(health)
		require.NoError(b, err)
		config := filepath.Join(p.dir, "kubelet.yaml")
		require.NoError(b, os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
enableServer: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
healthzBindAddress: %s
healthzPort: %s
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: %s
makeIPTablesUtilChains: false
containerRuntimeEndpoint: %s
staticPodPath: %s
podLogsDir: %s
resolvConf: /etc/resolv.conf
maxPods: %d
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
`, host, port, p.node.CgroupParent, p.endpoint, p.manifests, filepath.Join(p.dir, "logs"), max(maxPods, 110)), 0o600))
		return []string{
			binary, "--config=" + config, "--hostname-override=127.0.0.1",
			"--root-dir=" + filepath.Join(p.dir, "root"), "--cert-dir=" + filepath.Join(p.dir, "pki"),
		}
	}
	return p
}

func freeAddress(b *testing.B) string {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer func() { _ = lis.Close() }()
	return lis.Addr().String()
}

// makeCgroups creates a cgroup in every hierarchy, as a kubelet needs it for its root.
func makeCgroups(b *testing.B, parent string) {
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	require.NoError(b, err)
	for _, file := range append(hierarchies, "/sys/fs/cgroup/cgroup.procs") {
		if _, err := os.Stat(file); err == nil {
			_ = os.MkdirAll(filepath.Join(filepath.Dir(file), parent), 0o755) // one that cannot be written is not needed
		}
	}
}

// start starts the program and waits until it is ready.
func (p *nodeProcess) start(b *testing.B) {
	b.Helper()
	command := p.command(b)
	var err error
	p.log, err = os.Create(filepath.Join(p.dir, "log"))
	require.NoError(b, err)
	p.cmd = exec.Command(command[0], command[1:]...) //nolint:gosec // the programs of the benchmark
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(b, p.cmd.Start())
	b.Cleanup(func() { p.stop(b) })
	if p.ready != nil {
		require.Eventually(b, p.ready, time.Minute, 50*time.Millisecond, "the program is not ready; see %s", p.log.Name())
	}
}

// stop ends the program. A second call does nothing.
func (p *nodeProcess) stop(b *testing.B) {
	if p.cmd == nil {
		return
	}
	if b.Failed() {
		text, _ := os.ReadFile(p.log.Name())
		b.Logf("end of the log of %s:\n%s", p.dir, text[max(0, len(text)-4000):])
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	_ = p.cmd.Wait() // ended by a signal
	late.Stop()
	_ = p.log.Close()
	p.cmd = nil
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) { // volumes that a kubelet leaves
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], p.dir+"/") {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}

// cpu returns the CPU time that the program has used.
func (p *nodeProcess) cpu(b *testing.B) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	require.NoError(b, err)
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const userTime, systemTime, ticks = 11, 12, 100
	user, err1 := strconv.Atoi(f[userTime])
	system, err2 := strconv.Atoi(f[systemTime])
	require.NoError(b, err1)
	require.NoError(b, err2)
	return time.Duration(user+system) * time.Second / ticks
}

// memory returns the resident memory in MB, and the part of it that is not mapped from a file.
func (p *nodeProcess) memory(b *testing.B) (resident, anonymous float64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(b, err)
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(f[1], 64) // zero for lines without a figure
		switch f[0] {
		case "VmRSS:":
			resident = kib * 1024 / 1e6
		case "RssAnon:":
			anonymous = kib * 1024 / 1e6
		}
	}
	return resident, anonymous
}

// put writes the manifests of pods at once: a directory is renamed into place file by file.
func (p *nodeProcess) put(b *testing.B, pods []*corev1.Pod) {
	staging := filepath.Join(p.dir, "staging")
	require.NoError(b, os.MkdirAll(staging, 0o755))
	for _, pod := range pods {
		pod = pod.DeepCopy()
		pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		text, err := json.Marshal(pod)
		require.NoError(b, err)
		require.NoError(b, os.WriteFile(filepath.Join(staging, pod.Name+".json"), text, 0o600))
	}
	for _, pod := range pods {
		require.NoError(b, os.Rename(filepath.Join(staging, pod.Name+".json"), filepath.Join(p.manifests, pod.Name+".json")))
	}
}

// burstTimes are the times of a burst, by the clock of the runtime for starts, and to a tenth of a second for the rest.
type burstTimes struct {
	started []time.Duration // of each pod's container, in order
	stopped time.Duration   // until no container runs
	deleted time.Duration   // until no sandbox is left
}

// burst starts pods and deletes them.
func (p *nodeProcess) burst(b *testing.B, pods []*corev1.Pod) burstTimes {
	t := burstTimes{started: p.up(b, pods)}
	t.stopped, t.deleted = p.down(b)
	return t
}

// report adds the times to the metrics of the benchmark.
func (t burstTimes) report(b *testing.B, prefix string) {
	b.ReportMetric(ms(t.started[0]), prefix+"first-ms")
	b.ReportMetric(ms(median(t.started)), prefix+"median-ms")
	b.ReportMetric(ms(t.started[len(t.started)-1]), prefix+"last-ms")
	b.ReportMetric(ms(t.stopped), prefix+"stopped-ms")
	b.ReportMetric(ms(t.deleted), prefix+"deleted-ms")
}

const (
	pollPeriod = 100 * time.Millisecond
	// nodeTimeout bounds a wait for all pods: a kubelet collects its sandboxes once a minute.
	nodeTimeout = 5 * time.Minute
)

// up adds pods and returns when their containers were started.
func (p *nodeProcess) up(b *testing.B, pods []*corev1.Pod) (took []time.Duration) {
	began := time.Now()
	p.put(b, pods)
	var running []*cri.Container
	p.await(b, func() bool {
		all, err := p.rt.ListContainers(b.Context(), &cri.ListContainersRequest{
			Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}},
		})
		require.NoError(b, err)
		running = all.GetContainers()
		return len(running) >= len(pods)
	})
	for _, c := range running {
		st, err := p.rt.ContainerStatus(b.Context(), &cri.ContainerStatusRequest{ContainerId: c.GetId()})
		require.NoError(b, err)
		took = append(took, time.Unix(0, st.GetStatus().GetStartedAt()).Sub(began))
	}
	slices.Sort(took)
	return took
}

// down removes all manifests and returns when no container ran, and when no sandbox was left.
func (p *nodeProcess) down(b *testing.B) (stopped, deleted time.Duration) {
	began := time.Now()
	files, err := filepath.Glob(filepath.Join(p.manifests, "*.json"))
	require.NoError(b, err)
	for _, f := range files {
		require.NoError(b, os.Remove(f))
	}
	p.await(b, func() bool {
		all, err := p.rt.ListContainers(b.Context(), &cri.ListContainersRequest{
			Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}},
		})
		require.NoError(b, err)
		return len(all.GetContainers()) == 0
	})
	stopped = time.Since(began)
	p.await(b, func() bool {
		all, err := p.rt.ListPodSandbox(b.Context(), &cri.ListPodSandboxRequest{})
		require.NoError(b, err)
		return len(all.GetItems()) == 0
	})
	return stopped, time.Since(began)
}

func (p *nodeProcess) await(b *testing.B, condition func() bool) {
	for end := time.Now().Add(nodeTimeout); !condition(); time.Sleep(pollPeriod) {
		require.True(b, time.Now().Before(end), "the pods did not reach their state in %v", nodeTimeout)
	}
}
