//go:build linux

package vmtest_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// saveImage writes an image of one layer, as `ctr images import` reads it: files are the
// contents by path.
func saveImage(t *testing.T, file, reference string, entrypoint []string, files map[string][]byte) {
	t.Helper()
	archive := func(files map[string][]byte) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for name, data := range files {
			require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}))
			_, err := w.Write(data)
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		return b.Bytes()
	}
	layout := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	add := func(kind string, data []byte) map[string]any {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		layout["blobs/sha256/"+sum] = data
		return map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + sum, "size": len(data)}
	}
	object := func(v any) []byte {
		b, err := json.Marshal(v)
		require.NoError(t, err)
		return b
	}
	layer := add("layer.v1.tar", archive(files))
	config := add("config.v1+json", object(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Entrypoint": entrypoint, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{layer["digest"]}},
	}))
	manifest := add("manifest.v1+json", object(map[string]any{"schemaVersion": 2, "config": config, "layers": []any{layer}}))
	manifest["annotations"] = map[string]string{"io.containerd.image.name": reference}
	layout["index.json"] = object(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}})
	require.NoError(t, os.WriteFile(file, archive(layout), 0o600))
}

// images saves the images of a node without a registry: that of sandboxes, and busybox.
func images(t *testing.T, share string) {
	t.Helper()
	pause, err := os.ReadFile(filepath.Join(share, "pause"))
	require.NoError(t, err)
	saveImage(t, filepath.Join(share, "pause.tar"), "localhost/pause:1", []string{"/pause"}, map[string][]byte{"pause": pause})
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		require.NoError(t, err, "apt-get install busybox-static")
	}
	saveImage(t, filepath.Join(share, "busybox.tar"), "localhost/busybox:1", nil, map[string][]byte{"bin/busybox": busybox, "bin/sh": busybox, "bin/sleep": busybox})
}

// setUpNode has a machine run containerd with the driver systemd, and the agent, as
// services.
const setUpNode = `set -e
mkdir -p /etc/containerd /etc/cni/net.d /etc/manifests /usr/local/bin
cat >/etc/containerd/config.toml <<'C'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
C
cat >/etc/cni/net.d/10-test.conflist <<'C'
{ "cniVersion": "1.0.0", "name": "test", "plugins": [ { "type": "ptp", "ipMasq": false, "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.0.0/16" }]] } } ] }
C
cat >/etc/systemd/system/nodeagent.service <<'C'
[Unit]
After=containerd.service
Wants=containerd.service
[Service]
ExecStart=/usr/local/bin/nodeagent -node-name vm -manifests /etc/manifests -runtime-endpoint unix:///run/containerd/containerd.sock -status-dir /var/lib/statuses -listen 127.0.0.1:10250 -log-format json
Restart=always
RestartSec=1
KillMode=process
[Install]
WantedBy=multi-user.target
C
cp /host/nodeagent /usr/local/bin/nodeagent
systemctl enable containerd nodeagent 2>/dev/null
systemctl start containerd
ctr -n k8s.io images import /host/pause.tar >/dev/null
ctr -n k8s.io images import /host/busybox.tar >/dev/null
`
