package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/csitest"
)

func TestParse_CSIFlags(t *testing.T) {
	_, err := parse([]string{"-manifest-url", "http://localhost/", "-csi"}, &bytes.Buffer{})
	require.ErrorContains(t, err, "-csi needs -manifests")
}

const csiPod = `apiVersion: v1
kind: Pod
metadata: {name: web, annotations: {sim.sublet.dev/run-for: 1h}}
spec:
  containers: [{name: c, image: "nginx:1", volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  claimRef: {namespace: default, name: data}
  csi: {driver: csitest.example, volumeHandle: v1}
`

// A pod whose manifest has a PersistentVolume beside it gets it from the driver that
// registers, and gives it back.
func TestRun_MountsCSIVolumes(t *testing.T) {
	dir, err := os.MkdirTemp("", "na") //nolint:usetesting // a short path for the sockets
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	manifests, root := filepath.Join(dir, "m"), filepath.Join(dir, "r")
	require.NoError(t, os.Mkdir(manifests, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(manifests, "web.yaml"), []byte(csiPod), 0o600))
	f, err := parse([]string{"-root-dir", root, "-pod-logs-dir", filepath.Join(dir, "l"), "-manifests", manifests, "-listen=", "-hostname-override", "n", "-csi"}, &bytes.Buffer{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, f, &bytes.Buffer{}) }()
	defer func() { cancel(); require.NoError(t, <-done) }()
	registry := filepath.Join(root, "plugins_registry")
	eventually := func(what string, f func() bool) {
		t.Helper()
		require.Eventually(t, f, time.Minute, 10*time.Millisecond, what)
	}
	eventually("registry", func() bool { _, err := os.Stat(registry); return err == nil })
	d := &csitest.Driver{Dir: filepath.Join(dir, "driver")}
	stop, err := d.Serve(filepath.Join(dir, "csi.sock"), filepath.Join(registry, "csi.sock"))
	require.NoError(t, err)
	defer stop(false)
	require.NoError(t, d.CreateVolumeDir("v1"))
	eventually("published", func() bool { return len(d.Calls("NodePublishVolume")) > 0 })
	require.NoError(t, os.Remove(filepath.Join(manifests, "web.yaml")))
	eventually("unstaged", func() bool { return len(d.Calls("NodeUnstageVolume")) > 0 })
	eventually("nothing left", func() bool {
		pods, err := os.ReadDir(filepath.Join(root, "pods"))
		return err == nil && len(pods) == 0
	})
}
