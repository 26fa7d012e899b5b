package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/topology"
)

// allowedCPUs returns where the main process of a pod's container may run, as it sees itself.
func (w *world) allowedCPUs(pod string) (string, error) {
	have, err := w.containers()
	if err != nil || len(have[pod]) != 1 {
		return "", fmt.Errorf("containers of %s: %v: %w", pod, have[pod], err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	r, err := w.rt.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: have[pod][0].GetId(), Cmd: []string{"grep", "Cpus_allowed_list", "/proc/1/status"}, Timeout: 60})
	_, list, _ := strings.Cut(string(r.GetStdout()), ":")
	return strings.TrimSpace(list), err
}

// runsOn waits until the pods run on these CPUs.
func (w *world) runsOn(want map[string]string) {
	w.t.Helper()
	w.eventually(longRunTime, func() error {
		for pod, cpus := range want {
			if got, err := w.allowedCPUs(pod); err != nil || got != cpus {
				return fmt.Errorf("%s runs on %q, want %q: %w", pod, got, cpus, err)
			}
		}
		return nil
	})
}

// cpuQuotas returns the CPU limits of the cgroups of a pod and of its container, as the kernel
// has them; "" is none.
func (w *world) cpuQuotas(pod string) (ofPod, ofContainer string, err error) {
	have, err := w.containers()
	if err != nil || len(have[pod]) != 1 {
		return "", "", fmt.Errorf("containers of %s: %v: %w", pod, have[pod], err)
	}
	c := have[pod][0]
	root, file := "/sys/fs/cgroup", "cpu.max"
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
		root, file = root+"/cpu", "cpu.cfs_quota_us"
	}
	group := filepath.Join(root, w.node.CgroupParent, "kubepods", "pod"+c.GetLabels()["io.kubernetes.pod.uid"]) // of a Guaranteed pod
	quota := func(dir string) string {
		text, readErr := os.ReadFile(filepath.Join(dir, file))
		err = errors.Join(err, readErr)
		first, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		return strings.NewReplacer("max", "", "-1", "").Replace(first)
	}
	ofPod, ofContainer = quota(group), quota(filepath.Join(group, c.GetId()))
	return ofPod, ofContainer, err
}

// limitedTo waits until a pod and its container have this CPU limit.
func (w *world) limitedTo(pod, want string) {
	w.t.Helper()
	w.eventually(longRunTime, func() error {
		ofPod, ofContainer, err := w.cpuQuotas(pod)
		if err != nil || ofPod != want || ofContainer != want {
			return fmt.Errorf("quota of the pod %q and of its container %q, want %q: %w", ofPod, ofContainer, want, err)
		}
		return nil
	})
}

// A Guaranteed pod has a CPU for itself, on which it is not throttled, and the others leave it,
// also after the agent was killed and has lost what it stored. Without CPUs for itself it has
// its limit.
func TestRun_ExclusiveCPUs(t *testing.T) {
	machine, err := topology.Detect(os.DirFS("/"))
	require.NoError(t, err)
	all := machine.Online()
	if all.Len() < 2 {
		t.Skip("needs two CPUs; capability of the machine")
	}
	reserved := topology.NewSet(all.IDs()[0])
	own, _ := machine.Pick(all.Minus(reserved), 1)
	rest := all.Minus(own)
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		w := newWorld(t, n)
		w.extra = []string{
			"-cpu-manager-policy=static", "-reserved-cpus=" + reserved.String(), "-memory-manager-policy=Static",
			"-topology-manager-policy=single-numa-node", "-topology-manager-scope=pod",
		}
		// It requests no CPU: all that are not reserved may be for the other one.
		w.write("shared.yaml", strings.Replace(w.manifest("shared", "1"), "requests: {cpu: 10m,", "requests: {cpu: 0,", 1))
		alone := strings.NewReplacer("requests: {cpu: 10m, memory: 16Mi}", "requests: {cpu: 1, memory: 64Mi}", "limits: {cpu: 500m,", "limits: {cpu: 1,").Replace(w.manifest("alone", "1"))
		w.start()
		w.runsOn(map[string]string{"shared-node": all.String()})
		w.write("alone.yaml", alone)
		both := map[string]string{"alone-node": own.String(), "shared-node": rest.String()}
		w.runsOn(both)
		w.limitedTo("alone-node", "")
		before := w.identity()

		state := filepath.Join(w.root, "cpus.json")
		text, err := os.ReadFile(state)
		require.NoError(t, err)
		require.Contains(t, string(text), `"cpus":"`+own.String()+`"`)
		w.signal(syscall.SIGKILL)
		require.NoError(t, os.WriteFile(state, text[:len(text)/2], 0o600))
		w.start()
		w.eventually(longRunTime, func() error {
			restored, err := os.ReadFile(state)
			if err == nil && string(restored) != string(text) {
				err = fmt.Errorf("stored: %s", restored)
			}
			return err
		})
		w.eventually(longRunTime, func() error { return w.reportedRunning("alone-node", "shared-node") })
		w.consistently(time.Second, func() {
			w.runsOn(both)
			w.limitedTo("alone-node", "")
		})
		w.signal(syscall.SIGKILL)
		static := w.extra
		w.extra = nil
		w.start()
		w.limitedTo("alone-node", "100000")
		w.signal(syscall.SIGKILL)
		w.extra = static
		w.start()
		w.limitedTo("alone-node", "")
		require.Equal(t, before, w.identity(), "no container was restarted")
		require.FileExists(t, state+".damaged")

		require.NoError(t, os.Remove(filepath.Join(w.manifests, "alone.yaml")))
		w.runsOn(map[string]string{"shared-node": all.String()})
	})
}
