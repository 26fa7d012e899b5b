//go:build linux

package kubelet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/internal/kubetest"
)

// runtimeUnderTest is the runtime of the kubelet.
type runtimeUnderTest struct {
	dir          string // of the test, on a shared mount if the runtime has one
	endpoint     string
	image        string // with the programs of busybox
	cgroupParent string // of the kubelet; "" if the runtime has none
	process      int    // 0 for a runtime that is not measured
	debug        string // address of its profiles
	cri          v1.RuntimeServiceClient
}

// startRuntime starts the runtime that the environment names: the embedded one with host
// processes, or containerd for comparison.
func startRuntime(t *testing.T, out string) *runtimeUnderTest {
	t.Helper()
	r := &runtimeUnderTest{}
	switch name := cmp.Or(os.Getenv(envRuntime), "embedded"); name {
	case "embedded":
		r.startEmbedded(t, out)
	case "containerd":
		node := containerdtest.Start(t)
		r.endpoint, r.image, r.cgroupParent, r.dir = node.Endpoint(), node.Busybox, node.CgroupParent, filepath.Join(node.Shared, "kubelet")
		require.NoError(t, os.MkdirAll(r.dir, 0o755))
	default:
		t.Fatalf("%s: invalid value %q; use embedded or containerd", envRuntime, name)
	}
	cc, err := grpc.NewClient(r.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	r.cri = v1.NewRuntimeServiceClient(cc)
	return r
}

// startEmbedded starts examples/embeddedcri as an operator would.
func (r *runtimeUnderTest) startEmbedded(t *testing.T, out string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sublet-kubelet-") //nolint:usetesting // a socket path must be short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711)) //nolint:gosec // containers run as other users
	r.dir, r.image, r.endpoint, r.debug = dir, "docker.io/library/busybox:1.36", "unix://"+filepath.Join(dir, "cri.sock"), kubetest.FreeAddress(t)
	binary := filepath.Join(dir, "embeddedcri")
	output, err := exec.Command("go", "build", "-o", binary, "../../examples/embeddedcri").CombinedOutput()
	require.NoError(t, err, "%s", output)
	log, err := os.Create(filepath.Join(out, "runtime.log"))
	require.NoError(t, err)
	root := filepath.Join(dir, "containers")
	require.NoError(t, os.Mkdir(root, 0o711)) //nolint:gosec // containers run as other users
	cmd := exec.Command(binary, "-listen", r.endpoint, "-executor", "host", "-root", root, "-debug", r.debug)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	require.NoError(t, cmd.Start())
	r.process = cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = log.Close()
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("unix", strings.TrimPrefix(r.endpoint, "unix://"))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, time.Minute, 50*time.Millisecond, "the runtime does not serve; see %s", log.Name())
}

// sample is what the runtime uses at a time.
type sample struct {
	at                           time.Time
	sandboxes, containers        int
	goroutines, files, processes int
	mounts, directories          int
	heap, resident               int // bytes
}

// figures are the columns of a sample.
func (s sample) figures() []int {
	return []int{s.sandboxes, s.containers, s.goroutines, s.files, s.processes, s.mounts, s.directories, s.heap, s.resident}
}

func sampleNames() []string {
	return []string{"sandboxes", "containers", "goroutines", "files", "processes", "mounts", "directories", "heap bytes", "resident bytes"}
}

// sample measures the runtime.
func (r *runtimeUnderTest) sample(t *testing.T) sample {
	t.Helper()
	s, err := r.measure()
	require.NoError(t, err)
	return s
}

// measure counts what the runtime has; the heap is measured after a garbage collection.
func (r *runtimeUnderTest) measure() (sample, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := sample{at: time.Now(), processes: len(markedProcesses(containerMarker))}
	pods, errPods := r.cri.ListPodSandbox(ctx, &v1.ListPodSandboxRequest{})
	containers, err := r.cri.ListContainers(ctx, &v1.ListContainersRequest{})
	s.sandboxes, s.containers = len(pods.GetItems()), len(containers.GetContainers())
	if r.process == 0 {
		return s, errors.Join(errPods, err)
	}
	files, errFiles := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.process))
	mounts, errMounts := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", r.process))
	directories, errDirectories := filepath.Glob(filepath.Join(r.dir, "containers", "containers", "*"))
	status, errStatus := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.process))
	resident, errResident := figure(status, `VmRSS:\s+(\d+)`)
	s.files, s.mounts, s.directories, s.resident = len(files), bytes.Count(mounts, []byte(" "+r.dir+"/")), len(directories), resident<<10
	var errHeap, errGoroutines error
	s.heap, errHeap = r.profiled(ctx, "heap?gc=1&debug=1", `# HeapAlloc = (\d+)`)
	s.goroutines, errGoroutines = r.profiled(ctx, "goroutine?debug=1", `total (\d+)`)
	return s, errors.Join(errPods, err, errFiles, errMounts, errDirectories, errStatus, errResident, errHeap, errGoroutines)
}

// profiled returns a figure of a profile of the runtime.
func (r *runtimeUnderTest) profiled(ctx context.Context, profile, pattern string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.debug+"/debug/pprof/"+profile, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return figure(text, pattern)
}

// figure returns the number that the group of a pattern matches.
func figure(text []byte, pattern string) (int, error) {
	m := regexp.MustCompile(pattern).FindSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("no match of %s", pattern)
	}
	return strconv.Atoi(string(m[1]))
}

// sampler writes samples to a file until it is stopped.
type sampler struct{ stop func() }

func (r *runtimeUnderTest) sampleEvery(t *testing.T, path string, period time.Duration) sampler {
	file, err := os.Create(path)
	require.NoError(t, err)
	_, _ = fmt.Fprintln(file, "seconds,"+strings.Join(sampleNames(), ","))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	start := time.Now()
	go func() {
		defer close(done)
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				s, err := r.measure()
				if err != nil {
					_, _ = fmt.Fprintln(file, "#", err)
					continue
				}
				_, _ = fmt.Fprintf(file, "%.0f", s.at.Sub(start).Seconds())
				for _, n := range s.figures() {
					_, _ = fmt.Fprintf(file, ",%d", n)
				}
				_, _ = fmt.Fprintln(file)
			}
		}
	}()
	return sampler{stop: func() {
		cancel()
		<-done
		_ = file.Close()
	}}
}

// requireEmpty waits until the kubelet has removed everything from the runtime, which it
// does some minutes after the end of the last pod.
func (r *runtimeUnderTest) requireEmpty(t *testing.T) {
	t.Helper()
	var left string
	require.Eventually(t, func() bool {
		pods, err := r.cri.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
		require.NoError(t, err)
		containers, err := r.cri.ListContainers(t.Context(), &v1.ListContainersRequest{})
		require.NoError(t, err)
		processes := markedProcesses(containerMarker)
		left = fmt.Sprintf("%d sandboxes, %d containers, processes %v", len(pods.GetItems()), len(containers.GetContainers()), processes)
		return len(pods.GetItems())+len(containers.GetContainers())+len(processes) == 0
	}, 5*time.Minute, time.Second, "left in the runtime: %s", &left)
}

// allowed is how much more of a figure there may be when all pods are gone, by its name:
// an idle client has connections of its own, and memory is not returned at once.
func allowed(name string) int {
	switch name {
	case "goroutines", "files":
		return 10
	case "heap bytes":
		return 8 << 20
	case "resident bytes":
		return 48 << 20
	default:
		return 0
	}
}

// leaks names the figures that have grown.
func leaks(before, after sample) (found []string) {
	for i, name := range sampleNames() {
		if b, a := before.figures()[i], after.figures()[i]; a > b+allowed(name) {
			found = append(found, fmt.Sprintf("%s: %d before, %d after", name, b, a))
		}
	}
	return found
}

func compareSamples(before, after sample) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-16s %12s %12s\n", "", "before", "after")
	for i, name := range sampleNames() {
		fmt.Fprintf(&b, "%-16s %12d %12d\n", name, before.figures()[i], after.figures()[i])
	}
	return b.String()
}

// markedProcesses returns the processes whose environment has the marker.
func markedProcesses(marker string) (found []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well-formed
	for _, file := range files {
		env, err := os.ReadFile(file) // a process that has ended has none
		if err == nil && slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return string(v) == marker }) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file))) // a number by the pattern
			found = append(found, pid)
		}
	}
	return found
}

// makeCgroups makes the root of the kubelet's cgroups in every hierarchy.
func makeCgroups(t *testing.T, parent string) {
	t.Helper()
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	require.NoError(t, err)
	for _, file := range append(hierarchies, "/sys/fs/cgroup/cgroup.procs") {
		if _, err := os.Stat(file); err == nil {
			_ = os.MkdirAll(filepath.Join(filepath.Dir(file), parent), 0o755) // one that cannot be written is not needed
		}
	}
}

// unmountBelow unmounts the volumes that a kubelet leaves.
func unmountBelow(dir string) {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") && !strings.Contains(f[4], "/run/") {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}

func splitAddress(t *testing.T, address string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	return host, port
}
