//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
)

// The kernel kills a container that needs more than its limit. The kernel's log says so, and an
// event of the container does; the node itself has not run out of memory. Its neighbours run on.
func TestContainerd_OutOfMemory(t *testing.T) {
	if log, err := os.Open("/dev/kmsg"); err != nil {
		t.Skip("needs root and the log of the kernel: ", err)
	} else {
		require.NoError(t, log.Close())
	}
	w := newWorld(t, containerdtest.Start(t))
	w.write("well.yaml", w.manifest("well", "1"))
	w.start()
	w.up("well-node")
	before := w.identity()
	w.write("greedy.yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: %s
    command: ["dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=1"]
    resources: {limits: {memory: 16Mi}}
`, w.node.Busybox))
	w.eventually(longRunTime, func() error {
		log, err := os.ReadFile(w.out.Name())
		if err == nil && !strings.Contains(string(log), `level=WARN msg=event pod=default/greedy-node reason=OOMKilling message="Process \"dd\" of container main was killed: the memory limit was reached"`) {
			err = errors.New("no event of the kill")
		}
		return err
	})
	w.eventually(soon, func() error { return w.endedFor("greedy", "OOMKilled") })
	log, err := os.ReadFile(w.out.Name())
	require.NoError(t, err)
	assert.NotContains(t, string(log), "SystemOOM")
	assert.Equal(t, before["well-node"], w.identity()["well-node"])
}

// endedFor returns an error until the status of a pod says why its container has ended.
func (w *world) endedFor(pod, reason string) error {
	files, err := filepath.Glob(filepath.Join(w.statuses, "*_"+pod+"-node_*.json"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("%d statuses: %w", len(files), err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	var p corev1.Pod
	if err := json.Unmarshal(data, &p); err != nil {
		return err
	}
	for _, c := range p.Status.ContainerStatuses {
		if end := c.State.Terminated; end != nil && end.Reason == reason && p.Status.Phase == corev1.PodFailed {
			return nil
		}
	}
	return fmt.Errorf("status is %+v", p.Status)
}
