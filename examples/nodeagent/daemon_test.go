package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/logtest"
)

func TestExitCode(t *testing.T) {
	assert.Equal(t, 0, exitCode(nil))
	assert.Equal(t, 1, exitCode(errors.New("failed")))
	assert.Equal(t, 64, exitCode(fmt.Errorf("start: %w", usageError{errors.New("bad")})))
	assert.Equal(t, 3, exitCode(fmt.Errorf("lock: %w", agent.ErrRootInUse)))
	assert.Equal(t, 4, exitCode(fmt.Errorf("owner: %w", agent.ErrOwnerID)))
}

// A restart helps where the system failed, and not where the flags are wrong.
func TestAsUsageError(t *testing.T) {
	assert.Equal(t, exitUsage, exitCode(asUsageError(errors.New("must be positive"))))
	assert.Equal(t, exitFailed, exitCode(asUsageError(fmt.Errorf("size of the file system: %w", syscall.EIO))))
}

// The whole daemon as systemd sees it: it is ready, feeds the watchdog, reads its configuration on SIGHUP and stops.
func TestRun_UnderSystemd(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "50000")
	next := func() string {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		buf := make([]byte, 1<<14)
		n, err := conn.Read(buf)
		require.NoError(t, err)
		return string(buf[:n])
	}
	await := func(prefix string) {
		require.Eventually(t, func() bool { return strings.HasPrefix(next(), prefix) }, time.Minute, time.Millisecond, prefix)
	}
	config, manifests := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "manifests")
	require.NoError(t, os.Mkdir(manifests, 0o700))
	configure := func(fields string) {
		text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nhealthzPort: 0\ncontainerRuntimeEndpoint: unix:///run/none.sock\noomScoreAdj: 0\n" + fields
		require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	}
	configure("")
	f, err := parse([]string{"-config", config, "-manifests", manifests, "-root-dir", filepath.Join(dir, "root"), "-pod-logs-dir", filepath.Join(dir, "logs"), "-listen", ""}, io.Discard)
	require.NoError(t, err)
	f.runtimeEndpoint = "" // simulated
	reloads := make(chan os.Signal)
	f.daemon.reloads = reloads
	var out logtest.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, f, &out) }()
	await("READY=1\nSTATUS=")
	await("WATCHDOG=1\nSTATUS=ready")

	configure("logging: {verbosity: 4, flushFrequency: 9s}\nmaxPods: 7\nimageGCHighThresholdPercent: 90\nevictionMaxPodGracePeriod: 20\n" +
		"staticPodURLHeader: {Authorization: [secret]}\nshutdownGracePeriod: 10s\n")
	reloads <- syscall.SIGHUP
	await("RELOADING=1\nMONOTONIC_USEC=")
	await("READY=1")
	require.Eventually(t, func() bool { return strings.Contains(out.String(), `msg="configuration read again" changes=6`) }, time.Minute, 10*time.Millisecond, out.String())
	for _, line := range []string{
		`level=INFO msg="configuration change applied" field=logging.verbosity old=0 new=4`,
		`level=INFO msg="configuration change applied" field=imageGCHighThresholdPercent old=85 new=90`,
		`level=INFO msg="configuration change applied" field=evictionMaxPodGracePeriod old=0 new=20`,
		`level=WARN msg="configuration change needs a restart" field=maxPods old=110 new=7`,
		`level=WARN msg="configuration change needs a restart" field=staticPodURLHeader old="" new=(hidden)`,
		`level=WARN msg="configuration change needs a restart" field=shutdownGracePeriod old=0s new=10s`, // it was off at the start
	} {
		assert.Contains(t, out.String(), line)
	}
	assert.NotContains(t, out.String(), "secret")
	assert.NotContains(t, out.String(), "logging.flushFrequency", "it has no effect")
	served := f.kubeletConfiguration()
	assert.Equal(t, int32(20), served.EvictionMaxPodGracePeriod)
	assert.Equal(t, int32(90), *served.ImageGCHighThresholdPercent)
	assert.Equal(t, int32(110), served.MaxPods, "it needs a restart")
	configure("evictionMaxPodGracePeriod: 30\n")
	reloads <- syscall.SIGHUP
	require.Eventually(t, func() bool { return strings.Contains(out.String(), `msg="configuration read again" changes=3`) }, time.Minute, 10*time.Millisecond)
	assert.Contains(t, out.String(), `field=logging.verbosity old=4 new=0`)
	assert.Contains(t, out.String(), `field=imageGCHighThresholdPercent old=90 new=85`)
	assert.Contains(t, out.String(), `field=evictionMaxPodGracePeriod old=20 new=30`)
	configure("maxPods: many\n")
	reloads <- syscall.SIGHUP
	require.Eventually(t, func() bool {
		return strings.Contains(out.String(), `msg="configuration rejected, the previous one stays"`)
	}, time.Minute, 10*time.Millisecond)
	configure("kubeReserved: {cpu: \"1000000\"}\n") // valid, but not on this machine
	reloads <- syscall.SIGHUP
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "leave no cpu for pods") }, time.Minute, 10*time.Millisecond)
	served = f.kubeletConfiguration()
	assert.Equal(t, int32(30), served.EvictionMaxPodGracePeriod)
	assert.Equal(t, int32(85), *served.ImageGCHighThresholdPercent)
	await("WATCHDOG=1")
	cancel()
	await("STOPPING=1")
	require.NoError(t, <-done)
}

func TestFlags_Logger(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	require.NoError(t, err)
	st := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // of this system
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", st.Dev, st.Ino))
	for _, format := range []string{"text", "json"} {
		f := flags{logFormat: format, verbosity: 4}
		f.logger(file).Debug("a", slog.Int("n", 1))
	}
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	assert.Equal(t, "<7>level=DEBUG msg=a n=1\n<7>{\"level\":\"DEBUG\",\"msg\":\"a\",\"n\":1}\n", string(text))
}
