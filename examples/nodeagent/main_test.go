package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bin is the program, built once for all tests.
var bin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "nodeagent-test-")
	if err != nil {
		panic(err)
	}
	bin = filepath.Join(dir, "nodeagent")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		panic(string(out))
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func TestFlagsAreCheckedAllAtOnce(t *testing.T) {
	_, err := parse([]string{
		"-root-dir", "relative", "-runtime-endpoint", "tcp://1.2.3.4", "-manifest-url", "ftp://x", "-log-format", "xml",
		"-node-ip", "here", "-cluster-dns", "dns", "-node-labels", "a", "-max-pods", "0", "-max-container-restart-period", "1h", "-sync-frequency", "-1s", "left",
	}, io.Discard)
	for _, want := range []string{
		"-root-dir", "-runtime-endpoint", "-manifest-url", "-log-format", "-node-ip", "-cluster-dns", "-node-labels", "-max-pods",
		"-max-container-restart-period", "-sync-frequency", `"left"`,
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	manifests := filepath.Join(dir, "m")
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"unknown flag", []string{"-nonsense"}, 2, "-nonsense"},
		{"nothing to run", nil, 2, "-manifests"},
		{"listen everywhere", []string{"-manifests", manifests, "-root-dir", dir, "-listen", "0.0.0.0:10255"}, 1, "not a loopback address"},
		{"root dir is a file", []string{"-manifests", manifests, "-listen", "", "-root-dir", file}, 1, file},
		{"root dir cannot be made", []string{"-manifests", manifests, "-listen", "", "-root-dir", "/proc/nowhere"}, 1, "/proc/nowhere"},
		{"bad node name", []string{"-manifests", manifests, "-root-dir", dir, "-node-name", "no/name"}, 1, "no/name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := exec.Command(bin, tt.args...)
			cmd.Stdout, cmd.Stderr = &out, &out
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Run(), &exit, out.String())
			require.Equal(t, tt.code, exit.ExitCode(), out.String())
			require.Contains(t, out.String(), tt.want)
			require.NotContains(t, out.String(), "goroutine ", "an error, not a crash")
		})
	}
}

// A daemon without a runtime simulates its pods, which shows its surface on any
// machine.
func TestSimulatedDaemon(t *testing.T) {
	dir := t.TempDir()
	addr := freeAddr(t)
	manifests := filepath.Join(dir, "manifests")
	require.NoError(t, os.Mkdir(manifests, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(manifests, "web.yaml"), []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: nginx:1}]}\n"), 0o600))
	w := &world{t: t, bin: bin, manifests: manifests, statuses: filepath.Join(dir, "status"), addr: addr}
	w.startWith("-manifests", manifests, "-root-dir", filepath.Join(dir, "root"), "-pod-logs-dir", filepath.Join(dir, "logs"),
		"-listen", addr, "-status-dir", w.statuses, "-node-name", "node", "-cgroup-root", "/sublet-nodeagent-test")
	w.eventually(soon, func() error { return w.toldRunning("web-node") })
	code, body, err := w.get("/healthz?verbose")
	require.NoError(t, err)
	require.Equal(t, 200, code, string(body))
	require.Contains(t, string(body), "[+] agent")
	began := time.Now()
	require.NoError(t, w.signal(syscall.SIGTERM))
	require.Less(t, time.Since(began), soon)
}
