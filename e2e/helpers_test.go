//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

const (
	nodeName = "node"
	nodeIP   = "192.0.2.10"
	tick     = 100 * time.Millisecond
)

// longRunTime bounds what takes as long as containerd and the machine do.
var longRunTime = containerdtest.Timeout(3 * time.Minute)

// testEnv is a node with a running agent, and every manifest of testdata on it.
type testEnv struct {
	node      *containerdtest.Node
	rt        cri.RuntimeServiceClient
	agent     *agent.Agent
	manifests string
	share     string // what manifests call /srv/share
	logs      string
	replace   *strings.Replacer

	mu       sync.Mutex
	statuses map[string]*corev1.Pod // newest pods and statuses, by the manifests' names
	news     []*corev1.Event
	said     strings.Builder // the agent's log
}

func newWorld(t *testing.T, n *containerdtest.Node) *testEnv {
	t.Helper()
	w := &testEnv{
		node: n, rt: cri.NewRuntimeServiceClient(n.Dial(t)), manifests: t.TempDir(),
		share: filepath.Join(n.Shared, "share"), logs: filepath.Join(n.Shared, "logs"), statuses: map[string]*corev1.Pod{},
	}
	require.NoError(t, os.Mkdir(w.share, 0o755))
	w.replace = strings.NewReplacer("registry.example/busybox:1", n.Busybox, "/srv/share", w.share, "private.example", private(t, n.Registry))
	var err error
	w.agent, err = agent.New(
		agent.WithRuntimeEndpoint(n.Endpoint()),
		agent.WithNodeName(nodeName),
		agent.WithRootDir(filepath.Join(n.Shared, "agent")),
		agent.WithNode(node.Config{
			IPs: []string{nodeIP}, CgroupRoot: n.CgroupParent, PodLogsDir: w.logs, ClusterDomain: "cluster.example",
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("16Gi")},
		}),
		agent.WithSource("file", podsource.File(w.manifests)),
		agent.WithStatusSink(status.SinkFunc(w.setStatus)),
		agent.WithRecorder(w),
		agent.WithConfig(podsync.Config{BackOff: runtime.ExponentialBackOff{Base: 100 * time.Millisecond, Max: time.Second}}),
		agent.WithLogger(slog.New(slog.NewTextHandler(w, nil))),
	)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.agent.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended, "a clean end")
		if t.Failed() {
			w.mu.Lock()
			defer w.mu.Unlock()
			said := w.said.String()
			t.Logf("the agent said:\n%s", said[max(0, len(said)-32<<10):])
		}
	})
	return w
}

// Write takes what the agent logs.
func (w *testEnv) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.said.Write(b)
}

// saidOf returns the end of what the agent has logged of a pod.
func (w *testEnv) saidOf(pod string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var of strings.Builder
	for line := range strings.Lines(w.said.String()) {
		if strings.Contains(line, pod) {
			of.WriteString(line)
		}
	}
	return of.String()[max(0, of.Len()-32<<10):]
}

// Record takes the agent's events.
func (w *testEnv) Record(e *corev1.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.news = append(w.news, e)
}

// hears waits for an event of the pod.
func (p *pod) hears(reason, message string) {
	p.t.Helper()
	p.eventually(func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, e := range p.news {
			if e.InvolvedObject.Name == p.name+"-"+nodeName && e.Reason == reason && strings.Contains(e.Message, message) {
				return nil
			}
		}
		return fmt.Errorf("no event %s of %s that says %q", reason, p.name, message)
	})
}

func (w *testEnv) setStatus(_ context.Context, p *corev1.Pod, st corev1.PodStatus) error {
	p = p.DeepCopy()
	p.Status = st
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statuses[strings.TrimSuffix(p.Name, "-"+nodeName)] = p
	return nil
}

// private serves the registry's images to those only who name themselves as
// the pull secret in testdata does.
func private(t *testing.T, r *containerdtest.Registry) (addr string) {
	s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, q *http.Request) {
		user, password, _ := q.BasicAuth()
		if user != "reader" || password != "open sesame" {
			out.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(out, "who are you?", http.StatusUnauthorized)
			return
		}
		r.ServeHTTP(out, q)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// put hands the agent a manifest, whole.
func (w *testEnv) put(t *testing.T, file, text string) {
	t.Helper()
	path := filepath.Join(w.manifests, file)
	require.NoError(t, os.WriteFile(path+".new", []byte(w.replace.Replace(text)), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// pod is one pod of a world, as the checks see it.
type pod struct {
	*testEnv
	t    *testing.T
	name string
	file string
}

// until waits for a status of the pod that f returns no error for.
func (p *pod) until(f func(*corev1.Pod) error) *corev1.Pod {
	p.t.Helper()
	var last *corev1.Pod
	p.eventually(func() error {
		p.mu.Lock()
		last = p.statuses[p.name]
		p.mu.Unlock()
		if last == nil {
			return fmt.Errorf("no status was sent for %s", p.name)
		}
		if err := f(last); err != nil {
			return fmt.Errorf("%w: phase %s %s %s, init %v, containers %v", err, last.Status.Phase, last.Status.Reason,
				last.Status.Message, last.Status.InitContainerStatuses, last.Status.ContainerStatuses)
		}
		return nil
	})
	return last
}

// eventually waits until f stops returning an error.
func (p *pod) eventually(f func() error) {
	p.t.Helper()
	deadline := time.Now().Add(longRunTime)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("not within %v: %v", longRunTime, err)
		}
		time.Sleep(tick)
	}
}

// runs waits until every regular container runs.
func (p *pod) runs() *corev1.Pod {
	p.t.Helper()
	return p.until(func(v *corev1.Pod) error {
		if v.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("does not run")
		}
		for i := range v.Status.ContainerStatuses {
			if v.Status.ContainerStatuses[i].State.Running == nil {
				return fmt.Errorf("container %s does not run", v.Status.ContainerStatuses[i].Name)
			}
		}
		return nil
	})
}

// ends waits for the end of the pod.
func (p *pod) ends(phase corev1.PodPhase) *corev1.Pod {
	p.t.Helper()
	v := p.until(func(v *corev1.Pod) error {
		if v.Status.Phase != corev1.PodSucceeded && v.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("has not ended")
		}
		return nil
	})
	require.Equal(p.t, phase, v.Status.Phase)
	return v
}

// waits waits until a container says that it waits for a reason.
func (p *pod) waits(container, reason string) corev1.ContainerStateWaiting {
	p.t.Helper()
	var got corev1.ContainerStateWaiting
	p.until(func(v *corev1.Pod) error {
		if c := find(v, container); c != nil && c.State.Waiting != nil && c.State.Waiting.Reason == reason {
			got = *c.State.Waiting
			return nil
		}
		return fmt.Errorf("does not wait with reason %s", reason)
	})
	return got
}

// find returns the status of a container of any kind, or nil.
func find(v *corev1.Pod, container string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{v.Status.InitContainerStatuses, v.Status.ContainerStatuses, v.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == container {
				return &list[i]
			}
		}
	}
	return nil
}

// id is the runtime's name of the container's newest run.
func (p *pod) id(container string) string {
	p.t.Helper()
	v := p.until(func(v *corev1.Pod) error {
		if c := find(v, container); c == nil || c.ContainerID == "" {
			return fmt.Errorf("container %s has no ID", container)
		}
		return nil
	})
	_, id, ok := strings.Cut(find(v, container).ContainerID, "://")
	require.True(p.t, ok)
	return id
}

// sh runs a line of shell in a container and returns what it says and how it ends.
func (p *pod) sh(container, line string) (said string, code int32, err error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), longRunTime)
	defer cancel()
	r, err := p.rt.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: p.id(container), Cmd: []string{"sh", "-c", line}, Timeout: int64(longRunTime.Seconds())})
	if err != nil {
		return "", -1, err
	}
	return strings.TrimSpace(string(r.GetStdout()) + string(r.GetStderr())), r.GetExitCode(), nil
}

// says requires what a line of shell in a container says.
func (p *pod) says(container, line, want string) {
	p.t.Helper()
	said, _, err := p.sh(container, line)
	require.NoError(p.t, err, line)
	require.Equal(p.t, want, said, line)
}

// saysSoon waits for it.
func (p *pod) saysSoon(container, line, want string) {
	p.t.Helper()
	p.eventually(func() error {
		if said, code, err := p.sh(container, line); err != nil || said != want {
			return fmt.Errorf("%s: %q, exit code %d, want %q: %w", line, said, code, want, err)
		}
		return nil
	})
}

// pid is the container's first process as the node sees it.
func (p *pod) pid(container string) int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), longRunTime)
	defer cancel()
	r, err := p.rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: p.id(container), Verbose: true})
	require.NoError(p.t, err)
	pid := pidOf(p.t, r.GetInfo())
	require.NotZero(p.t, pid)
	p.eventually(func() error { // a container that has just started may still be in the runtime's own program, which gives it its settings
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || len(line) == 0 || strings.HasSuffix(string(line), "\x00init\x00") {
			return fmt.Errorf("process %d is %q: %w", pid, line, err)
		}
		return nil
	})
	return pid
}

// pidOf is the process that a runtime tells of in a verbose status.
func pidOf(t *testing.T, info map[string]string) int {
	t.Helper()
	var process struct{ Pid int }
	require.NoError(t, json.Unmarshal([]byte(info["info"]), &process))
	return process.Pid
}

// proc returns one line of /proc/<pid>/status of the container's first process.
func (p *pod) proc(container, key string) string {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid(container)))
	require.NoError(p.t, err)
	for line := range strings.Lines(string(b)) {
		if name, value, _ := strings.Cut(line, ":"); name == key {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	p.t.Fatalf("no %s in %s", key, b)
	return ""
}

// sharesNamespace reports whether container main is in this process's namespace.
func (p *pod) sharesNamespace(kind string) bool {
	p.t.Helper()
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.pid("main"), kind))
	require.NoError(p.t, err)
	ours, err := os.Readlink("/proc/self/ns/" + kind)
	require.NoError(p.t, err)
	return theirs == ours
}

// cgroup returns a value of container main's cgroup, by the controller and file
// of version 1 or the file of version 2.
func (p *pod) cgroup(controller, file1, file2 string) string {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid("main")))
	require.NoError(p.t, err)
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if unifiedCgroups() && f[1] == "" || !unifiedCgroups() && strings.Contains(","+f[1]+",", ","+controller+",") {
			return p.cgroupFile(f[2], controller, file1, file2)
		}
	}
	p.t.Fatalf("no %s in %s", controller, b)
	return ""
}

// cgroupFile returns what the file of a cgroup says: that of the controller of version 1, or that of version 2.
func (p *pod) cgroupFile(group, controller, file1, file2 string) string {
	p.t.Helper()
	path := filepath.Join("/sys/fs/cgroup", controller, group, file1)
	if unifiedCgroups() {
		path = filepath.Join("/sys/fs/cgroup", group, file2)
	}
	value, err := os.ReadFile(path)
	require.NoError(p.t, err)
	return strings.TrimSpace(string(value))
}

// unifiedCgroups reports whether the machine has cgroups of version 2.
func unifiedCgroups() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// log returns what a run of a container said, without the stamps of the runtime.
func (p *pod) log(container string, attempt int) string {
	p.t.Helper()
	pattern := filepath.Join(p.logs, fmt.Sprintf("default_%s-%s_*", p.name, nodeName), container, fmt.Sprintf("%d.log", attempt))
	found, err := filepath.Glob(pattern)
	require.NoError(p.t, err)
	require.Len(p.t, found, 1, pattern)
	b, err := os.ReadFile(found[0])
	require.NoError(p.t, err)
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(line, " ", 4)
		require.Len(p.t, f, 4, line)
		if f[2] == "P" { // a part of a line
			f[3] = strings.TrimSuffix(f[3], "\n")
		}
		out.WriteString(f[3])
	}
	return out.String()
}

// shared returns what a pod left in the directory that manifests call /srv/share.
func (p *pod) shared(file string) string {
	b, err := os.ReadFile(filepath.Join(p.share, file))
	if err != nil {
		return err.Error()
	}
	return string(b)
}
