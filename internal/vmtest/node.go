//go:build linux

package vmtest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Images that ShareImages makes.
const (
	PauseImage   = "localhost/pause:1"
	BusyboxImage = "localhost/busybox:1"
)

const module = "github.com/sublet-dev/agent/"

// Build makes static programs for the machine in dir: commands by their path in this module,
// and tests by path and ".test".
func Build(t testing.TB, dir string, packages ...string) {
	t.Helper()
	for _, pkg := range packages {
		args := []string{"build"}
		path, isTest := strings.CutSuffix(pkg, ".test")
		if isTest {
			args = []string{"test", "-c", "-vet=off"}
		}
		cmd := exec.Command("go", append(args, "-ldflags=-s -w", "-o", filepath.Join(dir, filepath.Base(pkg)), module+path)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", pkg, err, out)
		}
	}
}

// ShareNode fills share with what SetUpContainerd and SetUpAgent install: the Debian package of
// nodeagent, and images.
func ShareNode(t testing.TB, share string) {
	t.Helper()
	ShareImages(t, share)
	Build(t, share, "examples/nodeagent", "internal/vmtest/testdata/kubeget")
	script, err := packageDir("examples/nodeagent")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(script, "packaging/deb.sh"), "1.0.0", filepath.Join(share, "nodeagent"))
	cmd.Dir = share
	cmd.Env = append(os.Environ(), "GOARCH=amd64", "DEB_COMPRESSION=none")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("deb.sh: %v\n%s", err, out)
	}
	if err := os.Remove(filepath.Join(share, "nodeagent")); err != nil { // it is in the package
		t.Fatal(err)
	}
}

func packageDir(pkg string) (string, error) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", module+pkg).Output()
	return strings.TrimSpace(string(out)), err
}

// ShareImages fills share with the images of a node without a registry: that of sandboxes,
// and busybox.
func ShareImages(t testing.TB, share string) {
	t.Helper()
	Build(t, share, "internal/containerdtest/testdata/pause")
	pause, err := os.ReadFile(filepath.Join(share, "pause"))
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%v; apt-get install busybox-static", err)
	}
	err = errors.Join(
		saveImage(filepath.Join(share, "pause.tar"), PauseImage, []string{"/pause"}, map[string][]byte{"pause": pause}),
		saveImage(filepath.Join(share, "busybox.tar"), BusyboxImage, nil, map[string][]byte{"bin/busybox": busybox, "bin/sh": busybox, "bin/sleep": busybox}),
	)
	if err != nil {
		t.Fatal(err)
	}
}

// saveImage writes an image of one layer, as `ctr images import` reads it: files are the
// contents by path.
func saveImage(file, reference string, entrypoint []string, files map[string][]byte) error {
	layout := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	var errs []error
	add := func(kind string, data []byte) map[string]any {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		layout["blobs/sha256/"+sum] = data
		return map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + sum, "size": len(data)}
	}
	object := func(v any) []byte {
		b, err := json.Marshal(v)
		errs = append(errs, err)
		return b
	}
	archive := func(files map[string][]byte) []byte {
		b, err := archiveOf(files)
		errs = append(errs, err)
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
	return errors.Join(append(errs, os.WriteFile(file, archive(layout), 0o600))...)
}

func archiveOf(files map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name])), Typeflag: tar.TypeReg}); err != nil {
			return nil, err
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// SetUpContainerd is a script that starts containerd as a service, with the driver systemd,
// and gives it the images of ShareImages.
const SetUpContainerd = `set -e
mkdir -p /etc/containerd /etc/cni/net.d
cat >/etc/containerd/config.toml <<'C'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
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
systemctl enable containerd 2>/dev/null
systemctl start containerd
ctr -n k8s.io images import /host/pause.tar >/dev/null
ctr -n k8s.io images import /host/busybox.tar >/dev/null
`

// SetUpAgent is a script that installs the package of nodeagent and starts its service with
// two more flags: it writes statuses to /var/lib/statuses, and serves an API that kubeget
// asks.
const SetUpAgent = `set -e
dpkg -i /host/nodeagent_1.0.0_amd64.deb >/dev/null
echo 'NODEAGENT_FLAGS="-config /etc/sublet/config.yaml -manifests /etc/sublet/manifests -status-dir /var/lib/statuses -kube-api 127.0.0.1:6443"' >/etc/default/nodeagent
systemctl restart nodeagent
`

// SetUpNode does both.
const SetUpNode = SetUpContainerd + SetUpAgent
