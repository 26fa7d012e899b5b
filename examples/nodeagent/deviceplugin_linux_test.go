package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
)

// sampleResource is what the sample plugin of Kubernetes provides: the devices Dev-1 and
// Dev-2, which are files below /tmp.
const sampleResource = "example.com/resource"

// deviceNode is a node whose pods get the devices of Kubernetes' sample device plugin.
type deviceNode struct {
	*world
	dir       string // of the device plugins
	plugin    *exec.Cmd
	resources podresources.PodResourcesListerClient
}

func newDeviceNode(t *testing.T, n *containerdtest.Node) *deviceNode {
	w := &deviceNode{world: newWorld(t, n), dir: filepath.Join(n.Shared, "plugins")}
	socket := filepath.Join(n.Shared, "pod-resources.sock")
	w.extra = []string{"-device-plugin-dir", w.dir, "-pod-resources-socket", socket}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	w.resources = podresources.NewPodResourcesListerClient(conn)
	t.Cleanup(func() {
		w.killPlugin()
		for _, f := range []string{"/tmp/Dev-1", "/tmp/Dev-2"} { // made by the plugin, which removes none
			_ = os.Remove(f)
		}
	})
	return w
}

// startPlugin starts the plugin, whose paths are fixed, in a mount namespace of its own.
func (w *deviceNode) startPlugin(program string) {
	w.t.Helper()
	const plugins = "/var/lib/kubelet/device-plugins"
	w.plugin = exec.Command("unshare", "-m", "sh", "-ec", fmt.Sprintf(
		`mount -t tmpfs tmpfs /var/lib; mkdir -p %[1]s; mount --bind "$1" %[1]s; exec "$2"`, plugins), "sh", w.dir, program)
	out, err := os.CreateTemp(w.t.TempDir(), "plugin-*.log")
	require.NoError(w.t, err)
	w.plugin.Stdout, w.plugin.Stderr = out, out
	require.NoError(w.t, w.plugin.Start())
	w.t.Cleanup(func() {
		if b, err := os.ReadFile(out.Name()); err == nil && w.t.Failed() {
			w.t.Logf("the plugin said:\n%s", b)
		}
		_ = out.Close()
	})
}

func (w *deviceNode) killPlugin() {
	if w.plugin != nil {
		_ = w.plugin.Process.Kill()
		_ = w.plugin.Wait() // killed: the error is what was asked for
		w.plugin = nil
	}
}

// allocatable waits until so many devices can be allocated.
func (w *deviceNode) allocatable(want int) {
	w.t.Helper()
	w.eventually(longRunTime, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		r, err := w.resources.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
		if err != nil || len(r.GetDevices()) != want {
			return fmt.Errorf("allocatable: %v: %w", r, err)
		}
		return nil
	})
}

// allocated returns the devices of each pod as the pod resources API has them.
func (w *deviceNode) allocated() (map[string][]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	r, err := w.resources.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, p := range r.GetPodResources() {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				if d.GetResourceName() == sampleResource {
					out[p.GetName()] = append(out[p.GetName()], d.GetDeviceIds()...)
				}
			}
		}
	}
	return out, nil
}

// devicesInside returns the devices that a container of the pod finds in its file system.
func (w *deviceNode) devicesInside(pod string) ([]string, error) {
	have, err := w.containers()
	if err != nil || len(have[pod]) != 1 {
		return nil, fmt.Errorf("containers of %s: %v: %w", pod, have[pod], err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	r, err := w.rt.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: have[pod][0].GetId(), Cmd: []string{"ls", "/tmp"}, Timeout: 60})
	return strings.Fields(string(r.GetStdout())), err
}

// sees waits until the pod has one device, from inside and in the pod resources API.
func (w *deviceNode) sees(pod string) (device string) {
	w.t.Helper()
	w.eventually(longRunTime, func() error {
		inside, err := w.devicesInside(pod)
		if err != nil {
			return err
		}
		have, err := w.allocated()
		if err != nil || len(inside) != 1 || !slices.Equal(inside, have[pod]) {
			return fmt.Errorf("%s sees %v and has %v: %w", pod, inside, have[pod], err)
		}
		device = inside[0]
		return nil
	})
	return device
}

// status waits until the status of a pod meets a condition.
func (w *deviceNode) status(pod string, condition func(corev1.PodStatus) bool) {
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
			if p := &list.Items[i]; p.Name == pod && condition(p.Status) {
				return nil
			}
		}
		return fmt.Errorf("not the wanted status of %s in %s", pod, b)
	})
}

// hasHealth reports whether the one device of the pod has that health.
func hasHealth(want corev1.ResourceHealthStatus) func(corev1.PodStatus) bool {
	return func(st corev1.PodStatus) bool {
		if len(st.ContainerStatuses) != 1 || len(st.ContainerStatuses[0].AllocatedResourcesStatus) != 1 {
			return false
		}
		r := st.ContainerStatuses[0].AllocatedResourcesStatus[0].Resources
		return len(r) == 1 && r[0].Health == want
	}
}

// Pods get the devices of the sample plugin of Kubernetes, and keep them while the agent
// and the plugin are killed and come back. A pod for which there is none is rejected, and
// gets the device that another one frees at its end.
func TestRun_UpstreamDevicePlugin(t *testing.T) {
	program := os.Getenv("SUBLET_DEVICE_PLUGIN")
	if program == "" {
		t.Skip("SUBLET_DEVICE_PLUGIN does not name the sample device plugin; build it with internal/kubetest/apiserver/build.sh FILE test/images/sample-device-plugin")
	}
	n := containerdtest.Start(t)
	w := newDeviceNode(t, n)
	manifest := func(name string) {
		w.write(name+".yaml", strings.Replace(w.manifest(name, "1"), "limits: {", "limits: {"+sampleResource+": 1, ", 1))
	}
	w.start()
	w.eventually(longRunTime, func() error { _, err := os.Stat(filepath.Join(w.dir, "kubelet.sock")); return err })
	w.startPlugin(program)
	w.allocatable(2)

	manifest("first")
	manifest("second")
	first, second := w.sees("first-node"), w.sees("second-node")
	require.ElementsMatch(t, []string{"Dev-1", "Dev-2"}, []string{first, second})
	manifest("third")
	w.status("third-node", func(st corev1.PodStatus) bool {
		return st.Phase == corev1.PodFailed && st.Reason == "OutOf"+sampleResource
	})
	before := w.identity()
	unchanged := func() {
		t.Helper()
		require.Equal(t, before, w.identity(), "no container was restarted")
		have, err := w.allocated()
		require.NoError(t, err)
		require.Equal(t, map[string][]string{"first-node": {first}, "second-node": {second}}, have)
	}

	w.signal(syscall.SIGKILL)
	w.start()
	w.allocatable(2) // the plugin registers again, after ten seconds
	unchanged()
	w.status("first-node", hasHealth(corev1.ResourceHealthStatusHealthy))

	w.killPlugin()
	w.allocatable(0)
	w.status("first-node", hasHealth(corev1.ResourceHealthStatusUnknown))
	unchanged()
	w.startPlugin(program)
	w.allocatable(2)
	w.status("first-node", hasHealth(corev1.ResourceHealthStatusHealthy))
	unchanged()

	require.NoError(t, os.Remove(filepath.Join(w.manifests, "first.yaml")))
	require.Equal(t, first, w.sees("third-node"), "the device that was released")
	for _, name := range []string{"second", "third"} {
		require.NoError(t, os.Remove(filepath.Join(w.manifests, name+".yaml")))
	}
	w.eventually(longRunTime, func() error {
		have, err := w.allocated()
		if err != nil || len(have) > 0 {
			return fmt.Errorf("allocated: %v: %w", have, err)
		}
		return w.running()
	})
	w.consistently(time.Second, func() { w.allocatable(2) })
}
