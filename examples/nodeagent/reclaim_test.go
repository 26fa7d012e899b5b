//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
)

// TestRoomOnContainerd holds what keeps a node from filling up against a real
// runtime: dead containers, logs, local storage.
func TestRoomOnContainerd(t *testing.T) {
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		w := newWorld(t, n)
		w.extra = []string{
			"-container-log-max-size", "20Ki", "-container-log-max-files", "3", "-max-container-restart-period", "1s",
			"-eviction-hard", "none", "-evict-critical-pods",
		}
		const still = "trap 'exit 0' TERM; sleep 3600 & wait"
		w.write("crash.yaml", w.script("crash", "echo again; exit 3", ""))
		w.write("loud.yaml", w.script("loud", "i=0; while :; do echo line $i; i=$((i+1)); usleep 1000; done", ""))
		w.write("hoard.yaml", w.script("hoard", "head -c 4194304 /dev/urandom > /scratch/much; "+still, "1Mi"))
		w.write("calm.yaml", w.script("calm", still, ""))
		w.start()
		t.Run("CG-1 of a container that keeps ending one dead one stays", w.deadAreCollected)
		t.Run("CG-3 logs are rotated", w.logsAreRotated)
		t.Run("EV-7 a pod over its local storage is evicted, and no other", w.hoarderGoes)
		t.Run("metrics tell of it", func(t *testing.T) {
			w.eventually(soon, func() error {
				return errors.Join(
					w.measured("kubelet_running_pods", 2), w.measured("kubelet_evictions", 1),
					w.measured("kubelet_runtime_operations_total", 50), w.measured("kubelet_pleg_relist_duration_seconds", 1),
				)
			})
		})
		require.NoError(t, w.signal(syscall.SIGTERM))
		require.FileExists(t, filepath.Join(w.root, "images.json"), "ages of images outlive the process")
		w.extra = append(w.extra, "-drain")
		w.start()
		w.eventually(longRunTime, func() error { _, err := w.pod("calm-node"); return err })
		require.NoError(t, w.signal(syscall.SIGTERM))
		require.NoError(t, w.drained())
	})
}

// script is a pod that runs a script, with a bound on what it may write.
func (w *world) script(name, text, sizeLimit string) string {
	b, err := json.Marshal([]string{"sh", "-c", text})
	require.NoError(w.t, err)
	dir := "{}"
	if sizeLimit != "" {
		dir = fmt.Sprintf("{sizeLimit: %s}", sizeLimit)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 2
  volumes: [{name: scratch, emptyDir: %s}]
  containers:
  - {name: main, image: %q, imagePullPolicy: IfNotPresent, command: %s, volumeMounts: [{name: scratch, mountPath: /scratch}]}
`, name, dir, w.node.Busybox, b)
}

// pod is what /pods tells of one.
func (w *world) pod(name string) (*corev1.Pod, error) {
	_, b, err := w.get("/pods")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].Name == name {
			return &list.Items[i], nil
		}
	}
	return nil, fmt.Errorf("no pod %s in %s", name, b)
}

func (w *world) deadAreCollected(t *testing.T) {
	w.eventually(longRunTime, func() error {
		pod, err := w.pod("crash-node")
		if err != nil || len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].RestartCount < 6 {
			return fmt.Errorf("not restarted often enough: %w", err)
		}
		return nil
	})
	pod, err := w.pod("crash-node")
	require.NoError(t, err)
	c := pod.Status.ContainerStatuses[0]
	require.NotNil(t, c.LastTerminationState.Terminated)
	require.Equal(t, int32(3), c.LastTerminationState.Terminated.ExitCode)
	// One stays, and the newest few are on their way out. A busy machine may be slow to remove them.
	w.eventually(longRunTime, func() error {
		have, err := w.containers()
		require.NoError(t, err)
		logs, err := filepath.Glob(filepath.Join(w.logs, "*_crash-node_*", "main", "*.log"))
		require.NoError(t, err)
		if containers := len(have["crash-node"]); containers > 4 || len(logs) > 5 {
			return fmt.Errorf("%d containers and %d logs", containers, len(logs))
		}
		return nil
	})
}

func (w *world) logsAreRotated(t *testing.T) {
	pattern := filepath.Join(w.logs, "*_loud-node_*", "main", "*")
	var last string
	for range 2 { // it goes on after the first rotation
		w.eventually(longRunTime, func() error {
			files, err := filepath.Glob(pattern)
			if err != nil || len(files) < 3 {
				return fmt.Errorf("files %v: %w", files, err)
			}
			b, err := os.ReadFile(filepath.Join(filepath.Dir(files[0]), "0.log"))
			if err != nil {
				return err
			}
			lines := strings.Split(strings.TrimSpace(string(b)), "\n")
			if now := lines[len(lines)-1]; now != "" && now > last { // lines begin with their time
				last = now
				return nil
			}
			return fmt.Errorf("0.log does not go on after %q", last)
		})
	}
	w.consistently(3*time.Second, func() {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.LessOrEqual(t, len(files), 4, "one more while it is being rotated")
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				require.Less(t, info.Size(), int64(512<<10), f)
			}
		}
	})
}

func (w *world) hoarderGoes(t *testing.T) {
	w.eventually(2*longRunTime, func() error {
		pod, err := w.pod("hoard-node")
		if err != nil || pod.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("not evicted: %w", err)
		}
		return nil
	})
	pod, err := w.pod("hoard-node")
	require.NoError(t, err)
	require.Equal(t, "Evicted", pod.Status.Reason)
	require.Contains(t, pod.Status.Message, "scratch")
	have, err := w.containers()
	require.NoError(t, err)
	for _, c := range have["hoard-node"] {
		require.Equal(t, cri.ContainerState_CONTAINER_EXITED, c.GetState())
	}
	w.eventually(soon, func() error {
		for _, c := range w.podCgroups() {
			if strings.Contains(c, string(pod.UID)) {
				return fmt.Errorf("cgroup %s is left", c)
			}
		}
		return nil
	})
	calm, err := w.pod("calm-node")
	require.NoError(t, err)
	require.Equal(t, corev1.PodRunning, calm.Status.Phase)
}
