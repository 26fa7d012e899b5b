package main

import (
	"context"
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
	r, err := w.rt.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: have[pod][0].GetId(), Cmd: []string{"grep", "Cpus_allowed_list", "/proc/1/status"}, Timeout: 5})
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

// A Guaranteed pod has a CPU for itself, and the others leave it, also after the agent was
// killed and has lost what it stored.
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
		w.extra = []string{"-cpu-manager-policy=static", "-reserved-cpus=" + reserved.String(), "-topology-manager-policy=single-numa-node", "-memory-manager-policy=Static"}
		// It requests no CPU: all that are not reserved may be for the other one.
		w.write("shared.yaml", strings.Replace(w.manifest("shared", "1"), "requests: {cpu: 10m,", "requests: {cpu: 0,", 1))
		alone := strings.NewReplacer("requests: {cpu: 10m, memory: 16Mi}", "requests: {cpu: 1, memory: 64Mi}", "limits: {cpu: 500m,", "limits: {cpu: 1,").Replace(w.manifest("alone", "1"))
		w.start()
		w.runsOn(map[string]string{"shared-node": all.String()})
		w.write("alone.yaml", alone)
		both := map[string]string{"alone-node": own.String(), "shared-node": rest.String()}
		w.runsOn(both)
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
		w.consistently(time.Second, func() { w.runsOn(both) })
		require.Equal(t, before, w.identity(), "no container was restarted")
		require.FileExists(t, state+".damaged")

		require.NoError(t, os.Remove(filepath.Join(w.manifests, "alone.yaml")))
		w.runsOn(map[string]string{"shared-node": all.String()})
	})
}
