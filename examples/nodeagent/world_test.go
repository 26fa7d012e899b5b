//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
)

const (
	soon        = time.Minute     // what takes long on a busy machine alone
	longRunTime = 3 * time.Minute // what takes as long as containerd and the machine do
	tick        = 50 * time.Millisecond
)

// world is one node with one agent under test.
type world struct {
	t         *testing.T
	node      *containerdtest.Node
	rt        cri.RuntimeServiceClient
	bin       string
	manifests string
	root      string
	logs      string
	statuses  string
	addr      string
	extra     []string

	cmd *exec.Cmd
	out *os.File
}

func newWorld(t *testing.T, n *containerdtest.Node) *world {
	w := &world{t: t, node: n, rt: cri.NewRuntimeServiceClient(n.Dial(t)), bin: bin}
	w.root = filepath.Join(n.Shared, "agent")
	w.logs = filepath.Join(n.Shared, "logs")
	w.manifests, w.statuses = t.TempDir(), filepath.Join(t.TempDir(), "status")
	w.addr = freeAddr(t)
	t.Cleanup(func() { w.signal(syscall.SIGKILL) })
	return w
}

func (w *world) start() {
	w.t.Helper()
	w.startWith(append([]string{
		"-manifests", w.manifests, "-runtime-endpoint", w.node.Endpoint(), "-root-dir", w.root, "-pod-logs-dir", w.logs,
		"-node-name", "node", "-listen", w.addr, "-status-dir", w.statuses, "-cgroup-root", w.node.CgroupParent, "-v", "4",
	}, w.extra...)...)
}

func (w *world) startWith(args ...string) {
	w.t.Helper()
	out, err := os.CreateTemp(w.t.TempDir(), "agent-*.log")
	require.NoError(w.t, err)
	w.out = out
	w.cmd = exec.Command(w.bin, args...)
	w.cmd.Stdout, w.cmd.Stderr = out, out
	require.NoError(w.t, w.cmd.Start())
}

// signal ends the agent and returns how it ended.
func (w *world) signal(sig syscall.Signal) error {
	if w.cmd == nil {
		return nil
	}
	_ = w.cmd.Process.Signal(sig) // it may have ended by itself
	err := w.cmd.Wait()
	w.cmd = nil
	if w.t.Failed() {
		b, _ := os.ReadFile(w.out.Name())
		w.t.Logf("the agent said:\n%s", b[max(0, len(b)-16<<10):])
	}
	_ = w.out.Close()
	return err
}

// eventually waits until f stops returning an error.
func (w *world) eventually(within time.Duration, f func() error) {
	w.t.Helper()
	startTime := time.Now()
	for {
		err := f()
		if err == nil {
			return
		}
		waited := time.Since(startTime)
		if waited > within {
			b, _ := os.ReadFile(w.out.Name())
			w.t.Logf("the agent said:\n%s", b[max(0, len(b)-16<<10):])
			w.t.Fatalf("not within %v: %v", within, err)
		}
		time.Sleep(min(max(tick, waited/20), 10*tick)) // most of f are calls of a runtime that is busy
	}
}

func (w *world) write(name, text string) {
	w.t.Helper()
	path := filepath.Join(w.manifests, name)
	require.NoError(w.t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(w.t, os.Rename(path+".new", path))
}

// manifest is a pod that runs for long and exits at once on SIGTERM.
func (w *world) manifest(name, env string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 2
  volumes:
  - {name: scratch, emptyDir: {}}
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    command: ["sh", "-c", "trap 'exit 0' TERM; echo started $VERSION; sleep 3600 & wait"]
    env: [{name: VERSION, value: %q}]
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 500m, memory: 64Mi}}
    volumeMounts: [{name: scratch, mountPath: /scratch}]
`, name, w.node.Busybox, env)
}

// containers are the runtime's containers by pod name.
func (w *world) containers() (map[string][]*cri.Container, error) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	r, err := w.rt.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	byPod := map[string][]*cri.Container{}
	for _, c := range r.GetContainers() {
		name := c.GetLabels()["io.kubernetes.pod.name"]
		byPod[name] = append(byPod[name], c)
	}
	return byPod, nil
}

// pidOf returns the process in the information about a container or sandbox that containerd has, or 0.
func pidOf(info map[string]string) int {
	var process struct{ Pid int }
	if json.Unmarshal([]byte(info["info"]), &process) != nil {
		return 0
	}
	return process.Pid
}

// running returns an error until exactly the pods of these names run, one
// container each.
func (w *world) running(names ...string) error {
	have, err := w.containers()
	if err != nil {
		return err
	}
	for name, cs := range have {
		if !slices.Contains(names, name) {
			return fmt.Errorf("pod %s has %d containers and should be gone", name, len(cs))
		}
	}
	for _, name := range names {
		if len(have[name]) != 1 || have[name][0].GetState() != cri.ContainerState_CONTAINER_RUNNING {
			return fmt.Errorf("pod %s has containers %v", name, have[name])
		}
	}
	return nil
}

// drained reports a container that runs.
func (w *world) drained() error {
	have, err := w.containers()
	if err != nil {
		return err
	}
	for name, cs := range have {
		for _, c := range cs {
			if c.GetState() == cri.ContainerState_CONTAINER_RUNNING {
				return fmt.Errorf("container %s of pod %s runs", c.GetMetadata().GetName(), name)
			}
		}
	}
	return nil
}

func (w *world) get(path string) (int, []byte, error) {
	client := http.Client{Timeout: soon}
	r, err := client.Get("http://" + w.addr + path)
	if err != nil {
		return 0, nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, b, err
}

// phases are what /pods tells.
func (w *world) phases() (map[string]corev1.PodPhase, error) {
	_, b, err := w.get("/pods")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("%w in %q", err, b)
	}
	phases := map[string]corev1.PodPhase{}
	for _, p := range list.Items {
		phases[p.Name] = p.Status.Phase
	}
	return phases, nil
}

// filed are the phases in the status directory.
func (w *world) filed() (map[string]corev1.PodPhase, error) {
	files, err := filepath.Glob(filepath.Join(w.statuses, "*.json"))
	if err != nil {
		return nil, err
	}
	phases := map[string]corev1.PodPhase{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var p corev1.Pod
		if err := json.Unmarshal(b, &p); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		if want := p.Namespace + "_" + p.Name + "_" + string(p.UID) + ".json"; filepath.Base(f) != want {
			return nil, fmt.Errorf("file %s should be %s", f, want)
		}
		phases[p.Name] = p.Status.Phase
	}
	return phases, nil
}

// reportedRunning returns an error until /pods and the status directory have exactly
// these pods, as Running.
func (w *world) reportedRunning(names ...string) error {
	for where, ask := range map[string]func() (map[string]corev1.PodPhase, error){"/pods": w.phases, "status-dir": w.filed} {
		phases, err := ask()
		if err != nil {
			return err
		}
		have := slices.Sorted(maps.Keys(phases))
		want := slices.Sorted(slices.Values(names))
		if !slices.Equal(have, want) {
			return fmt.Errorf("%s has %v, want %v", where, have, want)
		}
		for name, phase := range phases {
			if phase != corev1.PodRunning {
				return fmt.Errorf("%s has %s for %s", where, phase, name)
			}
		}
	}
	return nil
}

func (w *world) up(names ...string) {
	w.t.Helper()
	w.eventually(longRunTime, func() error { return w.running(names...) })
	w.eventually(soon, func() error { return w.reportedRunning(names...) })
}

// identity is what must not change of a container that is left alone.
func (w *world) identity() map[string]string {
	have, err := w.containers()
	require.NoError(w.t, err)
	ids := map[string]string{}
	for name, cs := range have {
		for _, c := range cs {
			ids[name] += fmt.Sprintf("%s attempt %d created %d;", c.GetId(), c.GetMetadata().GetAttempt(), c.GetCreatedAt())
		}
	}
	return ids
}
