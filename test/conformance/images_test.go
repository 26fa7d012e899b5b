//go:build linux

package conformance

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/containerdtest"
)

// images pushes stand-ins for the images of the tests to the registry of a node: each has the
// busybox tools, and what the tests call in it.
type images struct {
	t        *testing.T
	registry *containerdtest.Registry
	base     []containerdtest.File
	tools    []byte
	agnhost  []byte
}

// path is that of all images.
const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func newImages(t *testing.T, registry *containerdtest.Registry, programs string) *images {
	t.Helper()
	tools := filepath.Join(t.TempDir(), "tools")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", tools, "./testdata/tools")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	i := &images{t: t, registry: registry}
	i.tools, i.agnhost = i.read(tools), i.read(filepath.Join(programs, "agnhost"))
	i.base = i.system()
	return i
}

func (i *images) read(file string) []byte {
	i.t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(i.t, err)
	return content
}

// system returns the files of all images: directories, users and a shell.
func (i *images) system() (files []containerdtest.File) {
	for dir := range strings.FieldsSeq("bin sbin usr usr/bin usr/sbin usr/local usr/local/bin etc root proc sys dev home mnt run var var/log var/run") {
		files = append(files, containerdtest.File{Name: dir + "/", Mode: 0o755})
	}
	files = append(files, containerdtest.File{Name: "tmp/", Mode: 0o1777},
		containerdtest.File{Name: "bin/busybox", Data: i.read("/bin/busybox"), Mode: 0o755},
		containerdtest.File{Name: "bin/bash", Data: i.read("/bin/bash-static"), Mode: 0o755},
		containerdtest.File{Name: "bin/sh", Link: "bash"},
		containerdtest.File{Name: "bin/tools", Data: i.tools, Mode: 0o755},
		containerdtest.File{Name: "etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")},
		containerdtest.File{Name: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\nnogroup:x:65534:\n")})
	tools := []string{"nc", "curl"} // Debian's busybox has no curl, and no UDP in its nc
	applets, err := exec.Command("/bin/busybox", "--list").Output()
	require.NoError(i.t, err)
	for applet := range strings.FieldsSeq(string(applets)) {
		if applet != "busybox" && applet != "sh" && applet != "bash" && !slices.Contains(tools, applet) {
			files = append(files, containerdtest.File{Name: "bin/" + applet, Link: "busybox"})
		}
	}
	for _, tool := range tools {
		files = append(files, containerdtest.File{Name: "bin/" + tool, Link: "tools"})
	}
	for applet := range strings.FieldsSeq("env id test") {
		files = append(files, containerdtest.File{Name: "usr/bin/" + applet, Link: "/bin/busybox"})
	}
	return files
}

// push pushes the image repository:tag, and reports whether there is a stand-in for it.
func (i *images) push(repository, tag string) bool {
	i.t.Helper()
	config := map[string]any{"Env": []string{path}, "Cmd": []string{"sh"}}
	var extra []containerdtest.File
	program := func(name string, content []byte, mode int64) {
		extra = append(extra, containerdtest.File{Name: name, Data: content, Mode: mode})
	}
	switch filepath.Base(repository) {
	case "glibc-dns-testing", "ipc-utils":
	case "busybox":
		extra = append(extra, containerdtest.File{Name: "bin/sh", Link: "tools"})
	case "agnhost":
		config["Entrypoint"], config["Cmd"] = []string{"/agnhost"}, []string{"pause"}
		program("agnhost", i.agnhost, 0o755)
		cert, key := i.certificate()
		program("localhost.crt", cert, 0o644)
		program("localhost.key", key, 0o644)
		extra = append(extra, containerdtest.File{Name: "agnhost-2", Link: "agnhost"}, containerdtest.File{Name: "uploads/", Mode: 0o755})
	case "nonroot":
		config["User"], config["Entrypoint"] = "1234", []string{"/bin/sh", "-c", "id -u"}
	case "nonewprivs":
		config["Entrypoint"] = []string{"/nnp"}
		program("nnp", i.tools, 0o4755)
	case "nginx":
		config["Cmd"] = []string{"/web"}
		extra = append(extra, containerdtest.File{Name: "web", Link: "bin/tools"})
	case "kitten": // is read as a volume
		program("data.json", []byte(`{"image": "kitten.jpg"}`), 0o644)
		program("etc/os-release", []byte("NAME=\"Alpine Linux\"\n"), 0o644)
	case "pause":
		config["User"], config["Entrypoint"], config["Cmd"] = "65535:65535", []string{"/agnhost"}, []string{"pause"}
		program("agnhost", i.agnhost, 0o755)
	default:
		return false
	}
	_, err := i.registry.Push(repository, tag, config, i.base, extra)
	require.NoError(i.t, err)
	return true
}

// certificate returns a certificate and its key, in PEM, for servers in pods that the suite
// starts with HTTPS. Clients do not verify it.
func (i *images) certificate() (cert, key []byte) {
	i.t.Helper()
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(i.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	require.NoError(i.t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(signer)
	require.NoError(i.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

// pushAll pushes what the suite lists as its images, and returns the file that tells the suite
// to take them from the registry.
func (i *images) pushAll(suite string) (repositories string) {
	i.t.Helper()
	var list strings.Builder
	for name := range strings.FieldsSeq("promoterE2eRegistry buildImageRegistry gcRegistry gcEtcdRegistry sigStorageRegistry cloudProviderGcpRegistry dockerLibraryRegistry") {
		fmt.Fprintf(&list, "%s: %s/e2e\n", name, i.registry.Addr())
	}
	fmt.Fprintf(&list, "privateRegistry: %s/private\ninvalidRegistry: invalid.registry.k8s.io/invalid\n", i.registry.Addr())
	repositories = filepath.Join(i.t.TempDir(), "repositories.yaml")
	require.NoError(i.t, os.WriteFile(repositories, []byte(list.String()), 0o600))
	command := exec.Command(suite, "--list-images")
	command.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+repositories)
	out, err := command.Output()
	require.NoError(i.t, err)
	i.push("e2e/busybox", "latest")
	pushed := 0
	for image := range strings.FieldsSeq(string(out)) {
		image, ok := strings.CutPrefix(image, i.registry.Addr()+"/")
		repository, tag, _ := strings.Cut(image, ":")
		if ok && strings.HasPrefix(repository, "e2e/") && i.push(repository, tag) {
			pushed++
		}
	}
	require.NotZero(i.t, pushed, "the suite lists no image that is known: %s", out)
	return repositories
}
