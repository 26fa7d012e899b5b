package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/sublet-dev/agent/internal/containerdtest"
)

func TestParse_DRAFlags(t *testing.T) {
	_, err := parse([]string{"-manifests", "/m", "-dra-plugin-dir", "d"}, &bytes.Buffer{})
	require.ErrorContains(t, err, `-dra-plugin-dir "d": must be an absolute path`)
	_, err = parse([]string{"-manifest-url", "http://127.0.0.1", "-dra-plugin-dir", "/d"}, &bytes.Buffer{})
	require.ErrorContains(t, err, "needs -manifests")
}

const draClaim = `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: camera, namespace: default, uid: claim-1}
spec: {}
status: {allocation: {devices: {results: [{request: camera, driver: dra.sublet.dev, pool: node, device: camera0}]}}}
`

// draNode is a node with a DRA driver that was made with Kubernetes' helper for drivers.
type draNode struct {
	*world
	registry, calls string
	driver          *exec.Cmd
}

func (w *draNode) startDriver(program string) {
	w.t.Helper()
	claims := filepath.Join(w.t.TempDir(), "claims.json")
	item, err := yaml.YAMLToJSON([]byte(draClaim))
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(claims, fmt.Appendf(nil, `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaimList","items":[%s]}`, item), 0o600))
	data := filepath.Join(w.node.Shared, "dra")
	for _, dir := range []string{data, w.registry} {
		require.NoError(w.t, os.MkdirAll(dir, 0o700))
	}
	w.driver = exec.Command(program, "-registry", w.registry, "-data", data, "-claims", claims, "-calls", w.calls,
		"-cdi", filepath.Join(filepath.Dir(w.node.Socket), "cdi"))
	w.driver.Stdout, w.driver.Stderr = os.Stderr, os.Stderr
	require.NoError(w.t, w.driver.Start())
}

func (w *draNode) killDriver() {
	if w.driver != nil {
		_ = w.driver.Process.Kill()
		_ = w.driver.Wait() // killed: the error is what was asked for
		w.driver = nil
	}
}

// called waits until the driver has got exactly these calls.
func (w *draNode) called(want ...string) {
	w.t.Helper()
	w.eventually(longRunTime, func() error {
		text, err := os.ReadFile(w.calls)
		if got := strings.Join(want, "\n") + "\n"; string(text) != got {
			return fmt.Errorf("calls: %q, want %q: %w", text, got, err)
		}
		return nil
	})
}

// sees waits until the pod's container finds the variable of its device.
func (w *draNode) sees(pod, want string) {
	w.t.Helper()
	w.seesVariable(pod, "DRA_DEVICE", want)
}

// seesVariable waits until the pod's container has a variable.
func (w *draNode) seesVariable(pod, name, want string) {
	w.t.Helper()
	w.eventually(longRunTime, func() error {
		have, err := w.containers()
		if err != nil || len(have[pod]) != 1 {
			return fmt.Errorf("containers of %s: %v: %w", pod, have[pod], err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		r, err := w.rt.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: have[pod][0].GetId(), Cmd: []string{"sh", "-c", "echo $" + name}, Timeout: 60})
		if got := strings.TrimSpace(string(r.GetStdout())); err != nil || got != want {
			return fmt.Errorf("%s sees %q, want %q: %w", pod, got, want, err)
		}
		return nil
	})
}

// waits waits until a container of the pod waits and says why.
func (w *draNode) waits(pod, why string) {
	w.t.Helper()
	w.eventually(longRunTime, func() error {
		_, b, err := w.get("/pods")
		if err != nil {
			return err
		}
		var list corev1.PodList
		if err := json.Unmarshal(b, &list); err != nil {
			return err
		}
		for i := range list.Items {
			for _, st := range list.Items[i].Status.ContainerStatuses {
				if list.Items[i].Name == pod && st.State.Waiting != nil && strings.Contains(st.State.Waiting.Message, why) {
					return nil
				}
			}
		}
		return fmt.Errorf("%s does not wait because of %q: %s", pod, why, b)
	})
}

// Pods get the devices of a ResourceClaim that is beside their manifests, from a driver that
// was made with Kubernetes' helper; they keep them while the agent and the driver are killed.
func TestRun_UpstreamDRADriver(t *testing.T) {
	program := os.Getenv("SUBLET_DRA_DRIVER")
	if program == "" {
		t.Skip("SUBLET_DRA_DRIVER does not name a DRA driver; build it with internal/dratest/testdata/driver/build.sh FILE")
	}
	n := containerdtest.Start(t)
	w := &draNode{world: newWorld(t, n), registry: filepath.Join(n.Shared, "registry"), calls: filepath.Join(t.TempDir(), "calls")}
	w.extra = []string{"-dra-plugin-dir", w.registry}
	t.Cleanup(w.killDriver)
	manifest := func(name string) {
		text := strings.Replace(w.manifest(name, "1"), "    resources: {", "    resources: {claims: [{name: camera}], ", 1)
		w.write(name+".yaml", text+"  resourceClaims: [{name: camera, resourceClaimName: camera}]\n")
	}
	w.write("claim.yaml", draClaim)
	manifest("first")
	w.start()
	w.waits("first-node", "the DRA driver is not registered: dra.sublet.dev")
	w.startDriver(program)
	w.sees("first-node", "camera0")
	manifest("second")
	w.sees("second-node", "camera0")
	w.called("prepare claim-1")
	before := w.identity()

	w.signal(syscall.SIGKILL)
	w.killDriver()
	w.start()
	w.eventually(longRunTime, func() error { return w.reportedRunning("first-node", "second-node") })
	require.NoError(t, os.Remove(filepath.Join(w.manifests, "first.yaml")))
	w.eventually(longRunTime, func() error { return w.running("second-node") })
	delete(before, "first-node")
	require.Equal(t, before, w.identity(), "no container was restarted")
	w.startDriver(program)
	w.called("prepare claim-1")
	require.NoError(t, os.Remove(filepath.Join(w.manifests, "second.yaml")))
	w.called("prepare claim-1", "unprepare claim-1")
	w.eventually(longRunTime, func() error { return w.running() })
	w.consistently(time.Second, func() { w.called("prepare claim-1", "unprepare claim-1") })
}
