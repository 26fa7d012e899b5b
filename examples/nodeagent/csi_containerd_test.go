//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/internal/csitest"
	"github.com/sublet-dev/agent/internal/mounts"
)

// VD-1, VD-2: a container reads and writes a CSI volume, and keeps it while agent and driver are killed
// and started again. When its pod is removed no mount, directory or staged volume is left,
// and the data is.
func TestCSIOnContainerd(t *testing.T) {
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		w := newWorld(t, n)
		dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // its name is too long for a socket
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
		registry := filepath.Join(dir, "plugins")
		w.extra = []string{"-csi", "-plugin-registry-dir", registry}
		require.NoError(t, os.Mkdir(registry, 0o700))
		d := &csitest.Driver{Dir: filepath.Join(n.Shared, "driver")}
		serve := func() func(bool) {
			t.Helper()
			stop, err := d.Serve(filepath.Join(dir, "csi.sock"), filepath.Join(registry, "csi.sock"))
			require.NoError(t, err)
			return stop
		}
		stop := serve()
		defer func() { stop(false) }()
		require.NoError(t, d.CreateVolumeDir("v1"))
		data := filepath.Join(d.VolumeDir("v1"), "data")
		require.NoError(t, os.WriteFile(filepath.Join(data, "in"), []byte("from outside\n"), 0o644))
		w.write("disk.yaml", `apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, claimRef: {namespace: default, name: data}, csi: {driver: csitest.example, volumeHandle: v1, fsType: ext4}}
`)
		w.write("db.yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: db}
spec:
  terminationGracePeriodSeconds: 2
  securityContext: {fsGroup: 4321}
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    command: ["sh", "-c", "trap 'exit 0' TERM; while true; do cat /data/in >/data/out; date +%%s%%N >>/data/beats; sleep 0.1; done"]
    volumeMounts: [{name: data, mountPath: /data}]
`, n.Busybox))
		w.start()
		read := func(name string) string {
			text, err := os.ReadFile(filepath.Join(data, name))
			if err != nil {
				return ""
			}
			return string(text)
		}
		beats := func() int { return strings.Count(read("beats"), "\n") }
		alive := func() {
			t.Helper()
			before := beats()
			w.eventually(longRunTime, func() error {
				if beats() <= before+2 {
					return errors.New("the container does not write")
				}
				return nil
			})
		}
		w.eventually(longRunTime, func() error { return w.running("db-node") })
		alive()
		w.eventually(longRunTime, func() error { // the file is empty while it is being written
			if out := read("out"); out != "from outside\n" {
				return fmt.Errorf("the container has read %q", out)
			}
			return nil
		})
		info, err := os.Stat(filepath.Join(data, "beats"))
		require.NoError(t, err)
		st, ok := info.Sys().(*syscall.Stat_t)
		require.True(t, ok)
		require.Equal(t, uint32(4321), st.Gid, "new files belong to the fsGroup")

		before := w.identity()
		w.signal(syscall.SIGKILL)
		stop(true)
		w.start()
		w.eventually(longRunTime, func() error { return w.reportedRunning("db-node") })
		alive()
		require.Equal(t, before, w.identity(), "the pod runs on")
		stop = serve()
		w.eventually(longRunTime, func() error {
			if len(d.Calls("NotifyRegistrationStatus")) == 0 && len(d.Calls("NodeGetInfo")) < 2 {
				return errors.New("the driver is not registered")
			}
			return nil
		})

		require.NoError(t, os.Remove(filepath.Join(w.manifests, "db.yaml")))
		w.eventually(longRunTime, func() error { return w.running() })
		w.eventually(longRunTime, func() error { return nothingLeft(w.root) })
		require.Equal(t, "from outside\n", read("in"))
		require.NoError(t, w.signal(syscall.SIGTERM))
	})
}

// nothingLeft returns what is left of pods and volumes below the agent's root.
func nothingLeft(root string) error {
	table, err := mounts.Below(root)
	if err != nil {
		return err
	}
	left := fmt.Sprint(table)
	for _, pattern := range []string{"pods/*", "plugins/kubernetes.io/csi/*/*"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, path := range found {
			left += " " + path
		}
	}
	if left != "[]" {
		return fmt.Errorf("left: %s", left)
	}
	return nil
}
