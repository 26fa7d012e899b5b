//go:build linux

package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
)

func ten() (names []string) {
	for i := range 10 {
		names = append(names, fmt.Sprintf("p%d-node", i))
	}
	return names
}

// TestPodsOnContainerd is the whole way of a pod on a real runtime: up, edited,
// removed, broken; the agent killed; the runtime gone for a while; the end.
func TestPodsOnContainerd(t *testing.T) {
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		w := newWorld(t, n)
		for i := range 10 {
			w.write(fmt.Sprintf("p%d.yaml", i), w.manifest(fmt.Sprintf("p%d", i), "1"))
		}
		w.start()
		all := ten()
		w.up(all...)
		t.Run("resources, logs and mounts reach the runtime", func(t *testing.T) { w.checkContainer(t, "p0-node") })
		t.Run("SR-3 an edited pod ends wholly before its successor starts", w.edit)
		t.Run("SR-4 garbage harms nobody", w.garbage)
		t.Run("SR-4 a removed pod leaves nothing", w.remove)
		left := all[:9]
		t.Run("AG-4 kill -9 of the agent", func(t *testing.T) {
			before := w.identity()
			w.signal(syscall.SIGKILL)
			w.start()
			w.eventually(longRunTime, func() error { return w.reportedRunning(left...) })
			w.consistently(2*time.Second, func() { require.Equal(t, before, w.identity()) })
		})
		t.Run("AG-3 a second agent is refused", w.second)
		t.Run("SL-2 the runtime goes away and comes back", w.outage)
		left = append(left, "new-node")
		t.Run("SL-7 SIGTERM leaves the pods", func(t *testing.T) {
			before := w.identity()
			require.NoError(t, w.signal(syscall.SIGTERM), "a clean end")
			require.Equal(t, before, w.identity())
		})
		t.Run("drain ends them", func(t *testing.T) {
			w.extra = []string{"-drain"}
			w.start()
			w.eventually(longRunTime, func() error { return w.reportedRunning(left...) })
			require.NoError(t, w.signal(syscall.SIGTERM))
			require.NoError(t, w.drained())
			require.Empty(t, w.podCgroups())
		})
	})
}

// consistently checks f for d: only time shows that something does not happen.
func (w *world) consistently(d time.Duration, f func()) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(tick) {
		f()
	}
}

func (w *world) checkContainer(t *testing.T, pod string) {
	have, err := w.containers()
	require.NoError(t, err)
	r, err := w.rt.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: have[pod][0].GetId(), Verbose: true})
	require.NoError(t, err)
	// A container that runs may not have written yet.
	w.eventually(soon, func() error {
		log, err := os.ReadFile(r.GetStatus().GetLogPath())
		if err == nil && !strings.Contains(string(log), "started 1") {
			err = fmt.Errorf("log is %q", log)
		}
		return err
	})
	require.Equal(t, "0.log", filepath.Base(r.GetStatus().GetLogPath())) // RT-13
	pid := pidOf(r.GetInfo())
	require.NotZero(t, pid, "%v", r.GetInfo())
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	require.NoError(t, err)
	memory := cgroupOf(string(cgroups), "memory")
	require.Contains(t, memory, w.node.CgroupParent+"/kubepods/burstable/pod")
	limit, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/memory", memory, "memory.limit_in_bytes"))
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(64<<20), strings.TrimSpace(string(limit)))
	cpu := filepath.Join("/sys/fs/cgroup/cpu", cgroupOf(string(cgroups), "cpu"))
	for file, want := range map[string]string{"cpu.shares": "10", "cpu.cfs_quota_us": "50000"} {
		b, err := os.ReadFile(filepath.Join(cpu, file))
		require.NoError(t, err)
		require.Equal(t, want, strings.TrimSpace(string(b)), file)
	}
}

func cgroupOf(text, controller string) string {
	for line := range strings.Lines(text) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && slices.Contains(strings.Split(f[1], ","), controller) {
			return f[2]
		}
	}
	return ""
}

func (w *world) edit(t *testing.T) {
	before, err := w.containers()
	require.NoError(t, err)
	old := before["p1-node"][0]
	w.write("p1.yaml", w.manifest("p1", "2"))
	var now *cri.Container
	w.eventually(longRunTime, func() error {
		have, err := w.containers()
		if err != nil {
			return err
		}
		for _, c := range have["p1-node"] {
			if c.GetId() != old.GetId() && c.GetState() == cri.ContainerState_CONTAINER_RUNNING {
				now = c
				return nil
			}
			if c.GetId() != old.GetId() && len(have["p1-node"]) > 1 {
				return fmt.Errorf("the new container is there beside the old one: %v", have["p1-node"])
			}
		}
		return fmt.Errorf("no new container in %v", have["p1-node"])
	})
	require.NotEqual(t, old.GetLabels()["io.kubernetes.pod.uid"], now.GetLabels()["io.kubernetes.pod.uid"])
	have, err := w.containers()
	require.NoError(t, err)
	require.Len(t, have["p1-node"], 1, "nothing of the old pod is left when the new one runs")
	w.eventually(soon, func() error { return w.reportedRunning(ten()...) })
}

func (w *world) garbage(t *testing.T) {
	before := w.identity()
	w.write("p2.yaml", "\x00 not: [a manifest")
	w.eventually(soon, func() error {
		code, b, err := w.get("/problems")
		if err != nil || code != http.StatusOK || !strings.Contains(string(b), "p2.yaml") {
			return fmt.Errorf("faults: %d %s: %w", code, b, err)
		}
		return nil
	})
	w.consistently(3*time.Second, func() { require.Equal(t, before, w.identity()) })
	w.write("p2.yaml", w.manifest("p2", "1"))
	w.eventually(soon, func() error {
		if _, b, err := w.get("/problems"); err != nil || strings.Contains(string(b), "p2.yaml") {
			return fmt.Errorf("faults: %s: %w", b, err)
		}
		return nil
	})
	require.Equal(t, before, w.identity(), "the same content is the same pod")
}

func (w *world) podCgroups() (found []string) {
	for _, c := range w.node.Cgroups() {
		if strings.HasPrefix(filepath.Base(c), "pod") {
			found = append(found, c)
		}
	}
	return found
}

func (w *world) remove(t *testing.T) {
	have, err := w.containers()
	require.NoError(t, err)
	uid := have["p9-node"][0].GetLabels()["io.kubernetes.pod.uid"]
	require.NotEmpty(t, uid)
	require.NoError(t, os.Remove(filepath.Join(w.manifests, "p9.yaml")))
	w.eventually(soon, func() error {
		if err := w.running(ten()[:9]...); err != nil {
			return err
		}
		r, err := w.rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": uid}}})
		if err != nil || len(r.GetItems()) > 0 {
			return fmt.Errorf("sandboxes %v: %w", r.GetItems(), err)
		}
		for what, list := range map[string][]string{"mount": w.node.Mounts(), "cgroup": w.podCgroups()} {
			for _, p := range list {
				if strings.Contains(p, uid) {
					return fmt.Errorf("%s %s is left", what, p)
				}
			}
		}
		for _, pattern := range []string{w.logs + "/*" + uid + "*", w.root + "/pods/" + uid, w.statuses + "/*" + uid + "*"} {
			if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
				return fmt.Errorf("%v is left: %w", left, err)
			}
		}
		return w.reportedRunning(ten()[:9]...)
	})
}

func (w *world) second(t *testing.T) {
	cmd := exec.Command(w.bin, "-manifests", w.manifests, "-runtime-endpoint", w.node.Endpoint(), "-root-dir", w.root, "-pod-logs-dir", w.logs, "-listen", "")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), fmt.Sprintf("process %d", w.cmd.Process.Pid))
}

func (w *world) outage(t *testing.T) {
	before := w.identity()
	w.node.StopDaemon(t, syscall.SIGTERM)
	stopped := time.Now()
	w.write("new.yaml", w.manifest("new", "1"))
	w.eventually(soon, func() error {
		code, b, err := w.get("/healthz?verbose")
		if err != nil || code == http.StatusOK || !strings.Contains(string(b), "runtime") {
			return fmt.Errorf("health: %d %s: %w", code, b, err)
		}
		return nil
	})
	w.consistently(time.Until(stopped.Add(20*time.Second)), func() { require.NoError(t, w.cmd.Process.Signal(syscall.Signal(0))) })
	w.node.StartDaemon(t)
	w.eventually(longRunTime, func() error { return w.running(append(ten()[:9], "new-node")...) })
	w.eventually(soon, func() error {
		if code, b, err := w.get("/healthz"); err != nil || code != http.StatusOK {
			return fmt.Errorf("health: %d %s: %w", code, b, err)
		}
		return nil
	})
	after := w.identity()
	delete(after, "new-node")
	require.Equal(t, before, after, "nothing was restarted that need not be")
}
