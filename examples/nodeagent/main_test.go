//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/stats"
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

func TestFlagsAreCheckedAllAtOnce(t *testing.T) {
	_, err := parse([]string{
		"-root-dir", "relative", "-runtime-endpoint", "tcp://1.2.3.4", "-manifest-url", "ftp://x", "-log-format", "xml",
		"-node-ip", "here", "-cluster-dns", "dns", "-node-labels", "a", "-max-pods", "0", "-max-container-restart-period", "1h", "-sync-frequency", "-1s",
		"-eviction-hard", "memory.available<lots", "-eviction-soft", "nodefs.available<10%", "-eviction-pressure-transition-period", "0s",
		"-image-gc-high-threshold", "101", "-image-gc-low-threshold", "-1", "-minimum-image-ttl-duration", "-1s", "-maximum-image-ttl-duration", "-1s",
		"-minimum-container-ttl-duration", "-1s", "-container-log-max-size", "big", "-container-log-max-files", "1",
		"-max-parallel-image-pulls", "0", "-registry-qps", "-1", "-registry-burst", "0", "left",
	}, io.Discard)
	for _, want := range []string{
		"-root-dir", "-runtime-endpoint", "-manifest-url", "-log-format", "-node-ip", "-cluster-dns", "-node-labels", "-max-pods",
		"-max-container-restart-period", "-sync-frequency", `"left": a command is the first argument, one of attach, `,
		"-eviction-hard: ", "-eviction-soft: ", "-eviction-pressure-transition-period", "-image-gc-high-threshold 101", "-image-gc-low-threshold -1",
		"-minimum-image-ttl-duration", "-maximum-image-ttl-duration", "-minimum-container-ttl-duration", "-container-log-max-size", "-container-log-max-files",
		"-max-parallel-image-pulls", "-registry-qps", "-registry-burst",
	} {
		require.ErrorContains(t, err, want)
	}
}

// Every combination of flags that passes the check makes an agent: what 0 means
// for the kubelet is not an error of the parts.
func TestFlagsMakeAnAgent(t *testing.T) {
	for name, extra := range map[string][]string{
		"defaults": nil,
		"zeros": {
			"-image-gc-low-threshold", "0", "-minimum-image-ttl-duration", "0s", "-maximum-dead-containers", "0",
			"-maximum-dead-containers-per-container", "0", "-registry-qps", "0", "-image-gc-high-threshold", "2",
		},
		"off": {"-eviction-hard", "none", "-image-gc-high-threshold", "100", "-container-log-max-size", "-1", "-maximum-dead-containers-per-container", "-1"},
		"all": {
			"-eviction-soft", "memory.available<20%", "-eviction-soft-grace-period", "memory.available=1m", "-eviction-minimum-reclaim", "memory.available=1Mi",
			"-eviction-max-pod-grace-period", "-1", "-maximum-image-ttl-duration", "48h", "-pod-infra-container-image", "pause:3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := parse(append([]string{"-manifests", t.TempDir(), "-root-dir", t.TempDir()}, extra...), io.Discard)
			require.NoError(t, err)
			opts, err := options(&f, slog.New(slog.DiscardHandler), nil, pluginDirs{}, &lateAccounts{})
			require.NoError(t, err)
			_, err = agent.New(opts...)
			require.NoError(t, err)
		})
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
		{"unknown flag", []string{"-nonsense"}, 64, "-nonsense"},
		{"nothing to run", nil, 64, "-manifests"},
		{"low above high", []string{"-manifests", manifests, "-image-gc-high-threshold", "80", "-image-gc-low-threshold", "80"}, 64, "-image-gc-low-threshold 80: must be from 0 to below -image-gc-high-threshold"},
		{"listen everywhere", []string{"-manifests", manifests, "-root-dir", dir, "-listen", "0.0.0.0:10255"}, 64, "other machines can reach this address"},
		{"root dir is a file", []string{"-manifests", manifests, "-listen", "", "-root-dir", file}, 1, file},
		{"root dir cannot be made", []string{"-manifests", manifests, "-listen", "", "-root-dir", "/proc/nowhere"}, 1, "/proc/nowhere"},
		{"bad cgroup driver", []string{"-manifests", manifests, "-root-dir", dir, "-listen", "", "-cgroup-driver", "openrc"}, 64, `"openrc" must be cgroupfs or systemd`},
		{"a cgroup root that systemd cannot have", []string{"-manifests", manifests, "-root-dir", dir, "-listen", "", "-cgroup-driver", "systemd", "-cgroup-root", "/lab"}, 64, `cgroup parent "/lab" is not a systemd slice path`},
		{"a file that may come later", []string{"-manifests", manifests, "-root-dir", dir, "-image-credential-provider-config", "/none", "-image-credential-provider-bin-dir", "/none"}, 1, "/none"},
		{"bad node name", []string{"-manifests", manifests, "-root-dir", dir, "-node-name", "no/name"}, 64, "no/name"},
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

func TestAdvice(t *testing.T) {
	err := fmt.Errorf("create root directory: %w", fs.ErrPermission)
	require.Contains(t, advice(err, 1000), "-root-dir and -pod-logs-dir")
	require.Empty(t, advice(err, 0))
	require.Empty(t, advice(io.EOF, 1000))
}

// measured returns an error until /metrics tells at least least of a metric: the
// sum of its series, or how often something was observed.
func (w *world) measured(name string, least float64) error {
	code, body, err := w.get("/metrics")
	if err != nil || code != 200 {
		return fmt.Errorf("metrics: %d: %w", code, err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return err
	}
	sum := 0.0
	for _, m := range families[name].GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	if sum < least {
		return fmt.Errorf("%s is %v, want %v", name, sum, least)
	}
	return nil
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
	w.eventually(soon, func() error { return w.reportedRunning("web-node") })
	code, body, err := w.get("/healthz?verbose")
	require.NoError(t, err)
	require.Equal(t, 200, code, string(body))
	require.Contains(t, string(body), "[+] syncloop")
	w.eventually(soon, func() error { return w.measured("kubelet_running_pods", 1) })
	w.eventually(soon, func() error { return w.measured("kubelet_runtime_operations_total", 1) })
	_, body, err = w.get("/metrics")
	require.NoError(t, err)
	for _, line := range []string{ // what dashboards and alerts for the kubelet join and count
		`kubelet_node_name{node="node"} 1`, `kubelet_working_pods{config="desired",lifecycle="sync",static="true"} 1`, `kubelet_active_pods{static="true"} 1`,
		`kubelet_started_containers_total{container_type="container"} 1`, "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"0-10MB\"} 1",
		"kubelet_containers_per_pod_count_sum 1", `major="1",minor="37"`,
	} {
		require.Contains(t, string(body), line)
	}
	w.eventually(soon, func() error { return w.measured("sublet_eviction_measurement_duration_seconds", 1) })

	_, body, err = w.get("/stats/summary")
	require.NoError(t, err)
	var summary stats.Summary
	require.NoError(t, json.Unmarshal(body, &summary), string(body))
	require.Equal(t, "node", summary.Node.NodeName)
	require.NotZero(t, *summary.Node.Memory.AvailableBytes)
	require.Greater(t, time.Since(summary.Node.StartTime.Time), time.Duration(0))
	require.Len(t, summary.Pods, 1)
	require.Equal(t, "web-node", summary.Pods[0].PodRef.Name)

	_, body, err = w.get("/conditions")
	require.NoError(t, err)
	var conditions []corev1.NodeCondition
	require.NoError(t, json.Unmarshal(body, &conditions), string(body))
	require.Len(t, conditions, 4)

	// A pod that does not fit is rejected, and the limits of all pods are set.
	w.write("big.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: big}\nspec: {containers: [{name: c, image: nginx:1, resources: {requests: {memory: 900Gi}}}]}\n")
	w.eventually(soon, func() error { return w.reason("big-node", "OutOfmemory") })
	startTime := time.Now()
	require.NoError(t, w.signal(syscall.SIGTERM))
	require.Less(t, time.Since(startTime), soon)
}

// With -page-out the program has less resident memory a few seconds after its start.
func TestPageOut(t *testing.T) {
	dir := t.TempDir()
	var out logtest.Buffer
	cmd := exec.Command(bin, "-manifests", dir, "-root-dir", filepath.Join(dir, "root"), "-pod-logs-dir", filepath.Join(dir, "logs"),
		"-cgroup-root", "/sublet-nodeagent-test-pageout", "-listen", "", "-node-name", "node", "-v", "4", "-page-out")
	cmd.Stderr = &out
	require.NoError(t, cmd.Start())
	defer func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
	}()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), `msg="program paged out" releasedBytes=`) }, soon, 50*time.Millisecond, &out)
}

// reason returns an error until the pod failed for a reason.
func (w *world) reason(pod, want string) error {
	_, body, err := w.get("/pods")
	if err != nil {
		return err
	}
	var list corev1.PodList
	if err := json.Unmarshal(body, &list); err != nil {
		return err
	}
	for i := range list.Items {
		if list.Items[i].Name == pod && list.Items[i].Status.Reason == want && list.Items[i].Status.Phase == corev1.PodFailed {
			return nil
		}
	}
	return fmt.Errorf("pod %s did not fail with reason %s", pod, want)
}
