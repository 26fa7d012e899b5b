//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// maxHeap bounds what is in use of the heap beyond what other tests have left there.
const maxHeap = 16 << 20

// hostileEnv is a node with an agent, a pod that behaves and others that do not.
type hostileEnv struct {
	t    *testing.T
	node *containerdtest.Node
	root string
	pods *podsource.Memory
	logs logLines

	mu       sync.Mutex
	statuses map[types.UID]corev1.PodStatus
	lost     []string // readiness or restarts of the pod that behaves
	peak     uint64   // of heapInUse
}

// What a container writes costs its own pod alone: the agent's memory stays
// bounded, another pod keeps running, and the hostile pod can be deleted, with its
// directory, so that its name can be used again. The contents of the node's files
// do not appear in its status.
func TestHostilePods(t *testing.T) {
	containerdtest.Stress(t, func(t *testing.T, n *containerdtest.Node) {
		goruntime.GC()
		before := heapInUse()
		e := newHostileEnv(t, n)
		names := []string{"hosts", "deep", "deeper", "fifo", "shadow", "huge", "leased"}
		const waitForFile = "while [ ! -e /e/exit ]; do sleep 0.2; done; exit 1"
		scripts := map[string]string{
			"hosts": "for s in 8192G 1024G 100G; do truncate -s $s /etc/hosts && break; done; sleep 1; exit 1",
			"deep":  "cd /e; i=0; while [ $i -lt 700 ]; do mkdir d && cd d; i=$((i+1)); done; touch /e/made; sleep 3600",
		}
		e.pods.Put(e.pod("beside", "", "trap 'exit 0' TERM; sleep 3600 & wait"))
		e.eventually("the other pod is ready", func() bool { return isReady(e.status("beside", "")) })
		for _, name := range names {
			script, ok := scripts[name]
			if !ok {
				script = waitForFile
			}
			e.pods.Put(e.pod(name, "", script))
		}
		e.eventually("the deep tree exists", func() bool {
			_, err := os.Stat(filepath.Join(e.volume("deep"), "made"))
			return err == nil
		})
		e.eventually("the hosts file is large", func() bool {
			info, err := os.Stat(filepath.Join(e.dir("hosts"), "etc-hosts"))
			return err == nil && info.Size() >= 100<<30
		})
		e.eventually("the pods run", func() bool {
			for _, name := range names[2:] {
				if e.status(name, "").Phase != corev1.PodRunning {
					return false
				}
			}
			return true
		})
		makeDeep(t, e.volume("deeper"), 20_000)
		e.replaceLogs()
		for _, name := range names[3:] {
			require.NoError(t, os.WriteFile(filepath.Join(e.volume(name), "exit"), nil, 0o600))
		}
		for _, name := range append([]string{"hosts"}, names[3:]...) {
			e.eventually(name+" exited and was restarted", func() bool {
				st := e.status(name, "")
				return len(st.ContainerStatuses) == 1 && st.ContainerStatuses[0].RestartCount >= 2
			})
			message := fmt.Sprint(e.status(name, ""))
			assert.NotContains(t, message, "root:", "the contents of /etc/shadow")
			assert.Less(t, len(message), 32<<10)
		}

		for _, name := range names {
			require.True(t, e.pods.Delete("default", name))
		}
		for _, name := range names {
			e.eventually("the directory of "+name+" is gone", func() bool {
				_, err := os.Lstat(e.dir(name))
				return errors.Is(err, fs.ErrNotExist)
			})
			e.pods.Put(e.pod(name, "-again", "trap 'exit 0' TERM; sleep 3600 & wait"))
		}
		for _, name := range names {
			e.eventually(name+" runs again", func() bool { return isReady(e.status(name, "-again")) })
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		assert.Empty(t, e.lost, "the other pod was disturbed")
		assert.Less(t, e.peak, before+maxHeap, "bytes of memory")
	})
}

func newHostileEnv(t *testing.T, n *containerdtest.Node) *hostileEnv {
	t.Helper()
	e := &hostileEnv{t: t, node: n, root: filepath.Join(n.Shared, "agent"), pods: podsource.NewMemory(), statuses: map[types.UID]corev1.PodStatus{}}
	a, err := agent.New(
		agent.WithRuntimeEndpoint(n.Endpoint()), agent.WithNodeName(nodeName), agent.WithRootDir(e.root),
		agent.WithNode(node.Config{IPs: []string{nodeIP}, CgroupRoot: n.CgroupParent, PodLogsDir: filepath.Join(n.Shared, "logs"), PodPidsLimit: 1000}),
		agent.WithSource("memory", e.pods), agent.WithStatusSink(status.SinkFunc(e.setStatus)),
		agent.WithConfig(podsync.Config{BackOff: runtime.ExponentialBackOff{Base: 100 * time.Millisecond, Max: time.Second}}),
		agent.WithLogger(slog.New(slog.NewTextHandler(&e.logs, nil))),
	)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	var sampler sync.WaitGroup
	sampler.Go(func() { e.sampleHeap(ctx) })
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
		sampler.Wait()
		if t.Failed() {
			said := e.logs.String()
			t.Logf("the agent logged:\n%s", said[max(0, len(said)-16<<10):])
		}
	})
	return e
}

// heapInUse returns the bytes that the last garbage collection has found in use. What it has freed
// depends on how much there was before, and so on other tests; the heap is about twice as large at most.
func heapInUse() uint64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return live[0].Value.Uint64()
}

// sampleHeap records the largest heap until ctx is done.
func (e *hostileEnv) sampleHeap(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for ctx.Err() == nil {
		e.mu.Lock()
		e.peak = max(e.peak, heapInUse())
		e.mu.Unlock()
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

func (e *hostileEnv) pod(name, generation, script string) *corev1.Pod {
	p := new(corev1.Pod)
	p.Name, p.Namespace, p.UID = name, "default", types.UID("uid-"+name+generation)
	p.Spec.HostNetwork = true
	p.Spec.TerminationGracePeriodSeconds = new(int64)
	p.Spec.Volumes = []corev1.Volume{{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Image: e.node.Busybox, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sh", "-c", script},
		VolumeMounts: []corev1.VolumeMount{{Name: "e", MountPath: "/e"}},
	}}
	return p
}

func (e *hostileEnv) dir(name string) string { return filepath.Join(e.root, "pods", "uid-"+name) }

// volume returns the directory of the pod's emptyDir on the node.
func (e *hostileEnv) volume(name string) string {
	found, err := filepath.Glob(filepath.Join(e.dir(name), "volumes", "*", "e"))
	require.NoError(e.t, err)
	if len(found) == 0 {
		return filepath.Join(e.dir(name), "absent")
	}
	return found[0]
}

func (e *hostileEnv) setStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if pod.Name == "beside" {
		wasReady := isReady(e.statuses[pod.UID])
		if wasReady && !isReady(st) {
			e.lost = append(e.lost, "not ready")
		}
		if len(st.ContainerStatuses) == 1 && st.ContainerStatuses[0].RestartCount > 0 {
			e.lost = append(e.lost, "restarted")
		}
	}
	e.statuses[pod.UID] = st
	return nil
}

func (e *hostileEnv) status(name, generation string) corev1.PodStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.statuses[types.UID("uid-"+name+generation)]
}

func isReady(st corev1.PodStatus) bool {
	for _, c := range st.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// eventually waits until f is true, within a bound that no busy machine exceeds.
func (e *hostileEnv) eventually(what string, f func() bool) {
	e.t.Helper()
	require.Eventually(e.t, f, 2*longRunTime, tick, what)
}

// replaceLogs does to the termination logs what a container can do that reaches the
// pod's directory, and holds a lease on one of them, which blocks those who open it.
func (e *hostileEnv) replaceLogs() {
	e.t.Helper()
	for _, name := range []string{"fifo", "shadow", "huge", "leased"} {
		file := e.terminationLog(name)
		switch name {
		case "fifo":
			require.NoError(e.t, os.Remove(file))
			require.NoError(e.t, unix.Mkfifo(file, 0o666))
		case "shadow":
			require.NoError(e.t, os.Remove(file))
			require.NoError(e.t, os.Symlink("/etc/shadow", file))
		case "huge":
			require.NoError(e.t, os.Truncate(file, 100_000_000))
		case "leased":
			f, err := os.OpenFile(file, os.O_RDWR, 0)
			require.NoError(e.t, err)
			e.t.Cleanup(func() { _ = f.Close() })
			if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
				e.t.Logf("no lease: %v", err) // the container has the file open
			}
		}
	}
}

// terminationLog returns the file of the pod's container on the node.
func (e *hostileEnv) terminationLog(name string) (file string) {
	e.t.Helper()
	volumes := filepath.Join(e.dir(name), "volumes")
	require.NoError(e.t, filepath.WalkDir(e.dir(name), func(path string, d fs.DirEntry, err error) error {
		switch {
		case path == volumes:
			return fs.SkipDir
		case err == nil && d.Type().IsRegular() && strings.Contains(path, "/main/") && !strings.HasSuffix(path, "hosts"):
			file = path
		}
		return err
	}))
	require.NotEmpty(e.t, file, "no termination log in %s", e.dir(name))
	return file
}

// makeDeep makes directories within each other, deeper than a path can be long.
func makeDeep(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	for range depth {
		require.NoError(t, unix.Mkdirat(fd, "d", 0o777))
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		fd = next
	}
	require.NoError(t, unix.Close(fd))
}
