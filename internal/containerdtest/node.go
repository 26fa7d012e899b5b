//go:build linux

package containerdtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/cgroup"
)

const startTimeout = 3 * time.Minute

// Node is a running containerd with all that a node agent needs around it.
type Node struct {
	Name         string // containerd-1.6
	Socket       string // path of the CRI socket
	Shared       string // a directory on a shared mount, for the root of an agent
	CgroupParent string // parent cgroup of pods, removed at the end; a slice with the driver systemd
	CgroupDriver cgroup.Driver
	Busybox      string // image reference with every busybox applet
	Pause        string // image reference with a program that waits for a signal
	Registry     *Registry

	dir     string
	bin     binaries
	cmd     *exec.Cmd
	network *network // nil until prepared
}

// Each runs f as a subtest on every containerd of this machine. It skips, or in
// CI fails, when there is none.
func Each(t *testing.T, f func(t *testing.T, n *Node)) {
	t.Helper()
	found, err := find()
	if err != nil {
		skip(t, err)
	}
	runOn(t, found, f)
}

// Stress is Each for tests that take long and depend little on the version: f runs on the newest
// containerd only, unless SUBLET_STRESS is "all".
func Stress(t *testing.T, f func(t *testing.T, n *Node)) {
	t.Helper()
	found, err := find()
	if err != nil {
		skip(t, err)
	}
	if os.Getenv("SUBLET_STRESS") != "all" {
		found = found[len(found)-1:]
	}
	runOn(t, found, f)
}

func runOn(t *testing.T, found []binaries, f func(t *testing.T, n *Node)) {
	t.Helper()
	for _, b := range found {
		t.Run(b.name, func(t *testing.T) { f(t, start(t, b)) })
	}
}

// Require skips, or in CI fails, when there is no containerd on this machine.
func Require(t testing.TB) {
	t.Helper()
	if _, err := find(); err != nil {
		skip(t, err)
	}
}

// EachBench is Each for a benchmark.
func EachBench(b *testing.B, f func(b *testing.B, n *Node)) {
	b.Helper()
	found, err := find()
	if err != nil {
		skip(b, err)
	}
	for _, bin := range found {
		b.Run(bin.name, func(b *testing.B) { f(b, start(b, bin)) })
	}
}

// Start starts the newest containerd of this machine. It skips, or in CI fails,
// when there is none.
func Start(t testing.TB) *Node {
	t.Helper()
	found, err := find()
	if err != nil {
		skip(t, err)
	}
	return start(t, found[len(found)-1])
}

func start(t testing.TB, b binaries) *Node {
	t.Helper()
	dir, err := os.MkdirTemp("", "sublet-containerd-") //nolint:usetesting // what is mounted in it must go first, and a socket path must be short
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // root in a user namespace has to get through
		t.Fatal(err)
	}
	n := &Node{
		Name: b.name, Socket: filepath.Join(dir, "containerd.sock"), Shared: filepath.Join(dir, "shared"),
		CgroupParent: "/" + filepath.Base(dir), CgroupDriver: cgroup.Cgroupfs, Registry: newRegistry(), dir: dir, bin: b,
	}
	if os.Getenv("SUBLET_CGROUP_DRIVER") == string(cgroup.Systemd) {
		n.CgroupDriver = cgroup.Systemd
		n.CgroupParent = "/" + strings.ReplaceAll(filepath.Base(dir), "-", "_") + ".slice"
	}
	t.Cleanup(func() { n.clean(t) })
	if err := n.prepare(); err != nil {
		t.Fatalf("prepare containerd: %v", err)
	}
	n.StartDaemon(t)
	for _, image := range []string{n.Busybox} {
		n.pull(t, image)
	}
	return n
}

// CDISpecDir is the directory of CDI specifications, or "" if this containerd has no CDI.
func (n *Node) CDISpecDir() string {
	if n.bin.major == "1" {
		return ""
	}
	return filepath.Join(n.dir, "cdi")
}

// Endpoint is the socket as an agent takes it.
func (n *Node) Endpoint() string { return "unix://" + n.Socket }

// Dial opens a connection of the test's own to the CRI socket.
func (n *Node) Dial(t testing.TB) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("unix://"+n.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// PodCgroup is the cgroup of a pod, as a path below the hierarchies.
func (n *Node) PodCgroup(t testing.TB, pod *corev1.Pod) string {
	t.Helper()
	m, err := cgroup.New(cgroup.Config{Parent: n.CgroupParent, Driver: n.CgroupDriver})
	if err != nil {
		t.Fatal(err)
	}
	return m.PodCgroup(pod)
}

func (n *Node) pull(t testing.TB, image string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout(startTimeout))
	defer cancel()
	_, err := cri.NewImageServiceClient(n.Dial(t)).PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}})
	if err != nil {
		t.Fatalf("pull %s: %v\n%s", image, err, n.Log())
	}
}

// prepare creates directories, images and configuration.
func (n *Node) prepare() error {
	for _, d := range []string{"cni", "certs/" + n.Registry.Addr(), "shared"} {
		if err := os.MkdirAll(filepath.Join(n.dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(n.Shared, n.Shared, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", n.Shared, err)
	}
	if err := unix.Mount("", n.Shared, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share %s: %w", n.Shared, err)
	}
	var err error
	if n.Pause, err = n.pushImages(); err != nil {
		return err
	}
	if n.network, err = claimNetwork(); err != nil {
		return err
	}
	files := map[string]string{
		"cni/10-test.conflist":                       fmt.Sprintf(cniConfig, n.dir, n.network.subnet),
		"certs/" + n.Registry.Addr() + "/hosts.toml": fmt.Sprintf(hostsConfig, n.Registry.Addr()),
		"config.toml":                                n.config(n.Pause),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// pauseProgram returns the program testdata/pause, which is built once for all nodes of a process.
var pauseProgram = sync.OnceValues(func() ([]byte, error) {
	if bin := os.Getenv("SUBLET_PAUSE"); bin != "" {
		return os.ReadFile(bin)
	}
	dir, err := os.MkdirTemp("", "sublet-pause-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin := filepath.Join(dir, "pause")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, "github.com/sublet-dev/agent/internal/containerdtest/testdata/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build pause: %w: %s", err, out)
	}
	return os.ReadFile(bin)
})

func (n *Node) pushImages() (pause string, err error) {
	data, err := pauseProgram()
	if err != nil {
		return "", err
	}
	pause, err = n.Registry.Push("test/pause", "1", map[string]any{"Entrypoint": []string{"/pause"}}, []File{{Name: "pause", Data: data, Mode: 0o755}})
	if err != nil {
		return "", err
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return "", fmt.Errorf("list busybox applets: %w", err)
	}
	n.Busybox, err = n.Registry.pushBusybox(strings.Fields(string(list)), "test/busybox", "1", nil)
	return pause, err
}

// PushBusybox makes another image of the busybox tools with extra files in it.
func (n *Node) PushBusybox(t testing.TB, repo, tag string, extra ...File) string {
	t.Helper()
	return n.PushLayers(t, repo, tag, extra)
}

// PushStopSignal makes another image of the busybox tools whose containers are stopped with a signal, as SIGUSR1.
func (n *Node) PushStopSignal(t testing.TB, repo, tag, signal string, extra ...File) string {
	t.Helper()
	return n.push(t, repo, tag, map[string]any{"StopSignal": signal}, extra)
}

// PushLayers makes an image with layers of files above that of the busybox tools,
// which all of these images share.
func (n *Node) PushLayers(t testing.TB, repo, tag string, layers ...[]File) string {
	t.Helper()
	return n.push(t, repo, tag, nil, layers...)
}

func (n *Node) push(t testing.TB, repo, tag string, config map[string]any, layers ...[]File) string {
	t.Helper()
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	ref, err := n.Registry.pushBusybox(strings.Fields(string(list)), repo, tag, config, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// SmallRoot gives the runtime a new file system of its own, of so many bytes, for
// all that it stores, and returns its path. The images of before are gone.
func (n *Node) SmallRoot(t testing.TB, size int) string {
	t.Helper()
	n.Purge(t)
	n.StopDaemon(t, syscall.SIGTERM)
	root := filepath.Join(n.dir, "root")
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Fatal(err)
	}
	n.StartDaemon(t)
	return root
}

// StartDaemon starts containerd, after StopDaemon too, and waits until its CRI
// answers that it is ready.
func (n *Node) StartDaemon(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(n.dir, "containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	n.cmd = exec.Command(n.bin.containerd, "--config", filepath.Join(n.dir, "config.toml"))
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: 0}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), Timeout(startTimeout))
	defer cancel()
	rt := cri.NewRuntimeServiceClient(n.Dial(t))
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := rt.Status(ctx, &cri.StatusRequest{}, grpc.WaitForReady(true))
		if err == nil && ready(r.GetStatus()) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s did not become ready: %v\n%s", n.Name, err, n.Log())
		case <-tick.C:
		}
	}
}

func ready(s *cri.RuntimeStatus) bool {
	for _, c := range s.GetConditions() {
		if (c.GetType() == "RuntimeReady" || c.GetType() == "NetworkReady") && !c.GetStatus() {
			return false
		}
	}
	return s != nil
}

// StopDaemon ends containerd with sig. Its shims and containers go on.
func (n *Node) StopDaemon(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if n.cmd == nil {
		return
	}
	if err := n.cmd.Process.Signal(sig); err != nil {
		t.Errorf("signal containerd: %v", err)
	}
	_ = n.cmd.Wait() // ended by a signal: the error is what was asked for
	n.cmd = nil
}

// Signal sends a signal to the daemon, such as SIGSTOP.
func (n *Node) Signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := n.cmd.Process.Signal(sig); err != nil {
		t.Errorf("signal containerd: %v", err)
	}
}

// Log is the tail of the daemon's log.
func (n *Node) Log() string {
	b, err := os.ReadFile(filepath.Join(n.dir, "containerd.log"))
	if err != nil {
		return err.Error()
	}
	const most = 64 << 10
	return string(b[max(0, len(b)-most):])
}
