//go:build unix

package systemd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/systemd"
)

// manager is systemd's side of the socket.
type manager struct {
	*net.UnixConn
	path string
}

func listen(t *testing.T) manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return manager{conn, path}
}

func (m manager) next(t *testing.T) string {
	t.Helper()
	require.NoError(t, m.SetReadDeadline(time.Now().Add(time.Minute)))
	buf := make([]byte, 1<<16)
	n, err := m.Read(buf)
	require.NoError(t, err)
	return string(buf[:n])
}

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for _, p := range pairs {
			if v, ok := strings.CutPrefix(p, name+"="); ok {
				return v
			}
		}
		return ""
	}
}

func TestNotifier_Run(t *testing.T) {
	m := listen(t)
	var stalled atomic.Bool
	stalled.Store(true)
	n, err := systemd.New(systemd.Config{
		Alive: func() error {
			if stalled.Load() {
				return errors.New("stalled\nREADY=1")
			}
			return nil
		},
		Status: func() string { return "fine\nWATCHDOG=trigger " + strings.Repeat("é", 1<<10) },
		Getenv: env("NOTIFY_SOCKET="+m.path, "WATCHDOG_USEC=20000"),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stalled.Store(false)
	ready := m.next(t)
	assert.True(t, strings.HasPrefix(ready, "READY=1\nSTATUS=fine WATCHDOG=trigger éé"), ready)
	assert.Equal(t, 1, strings.Count(ready, "\n"), "a status has one line")
	assert.Less(t, len(ready), 1<<11)
	assert.True(t, strings.HasPrefix(m.next(t), "WATCHDOG=1\nSTATUS=fine"))
	stalled.Store(true)
	var got string
	require.Eventually(t, func() bool { got = m.next(t); return !strings.HasPrefix(got, "WATCHDOG=1\n") }, time.Minute, time.Millisecond)
	assert.Equal(t, "STATUS=stalled READY=1", got)
	assert.Equal(t, "STATUS=stalled READY=1", m.next(t), "it is not fed")
	stalled.Store(false)
	require.Eventually(t, func() bool { return strings.HasPrefix(m.next(t), "WATCHDOG=1\n") }, time.Minute, time.Millisecond, "fed when it moves")
	n.Reload(func() { require.NoError(t, m.SetReadBuffer(1<<16)) })
	require.Eventually(t, func() bool { got = m.next(t); return strings.HasPrefix(got, "RELOADING=1\n") }, time.Minute, time.Millisecond)
	assert.Regexp(t, regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]+$`), got)
	require.Eventually(t, func() bool { return m.next(t) == "READY=1" }, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	require.Eventually(t, func() bool { return m.next(t) == "STOPPING=1" }, time.Minute, time.Millisecond)
}

// A start that waits for a person does not end after the time of a start that hangs.
func TestNotifier_Waiting(t *testing.T) {
	m := listen(t)
	n, err := systemd.New(systemd.Config{Alive: func() error { return nil }, Getenv: env("NOTIFY_SOCKET=" + m.path)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.Waiting(ctx, "a\nREADY=1") }()
	assert.Equal(t, "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=a READY=1", m.next(t))
	cancel()
	<-done
}

// A reload does not make a service ready that still starts: systemd would expect it to feed the watchdog.
func TestNotifier_ReloadBeforeReady(t *testing.T) {
	m := listen(t)
	var ready atomic.Bool
	n, err := systemd.New(systemd.Config{
		Alive: func() error {
			if !ready.Load() {
				return errors.New("starting")
			}
			return nil
		},
		Status: func() string { return "started" }, Getenv: env("NOTIFY_SOCKET=" + m.path),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	reloaded := false
	n.Reload(func() { reloaded = true })
	assert.True(t, reloaded)
	ready.Store(true)
	assert.Equal(t, "READY=1\nSTATUS=started", m.next(t), "the first report")
	cancel()
	require.NoError(t, <-done)
}

// Without a socket, with the watchdog of another process, and with a socket that does not exist, the program runs all the same.
func TestNotifier_WithoutSystemd(t *testing.T) {
	_, err := systemd.New(systemd.Config{})
	require.EqualError(t, err, "systemd: Config.Alive required")
	for _, getenv := range []func(string) string{nil, env(), env("NOTIFY_SOCKET=/nonexistent/notify", "WATCHDOG_USEC=lots"), env("WATCHDOG_USEC=1", "WATCHDOG_PID=1")} {
		n, err := systemd.New(systemd.Config{Alive: func() error { return nil }, Getenv: getenv})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		reloaded := false
		n.Reload(func() { reloaded = true })
		assert.True(t, reloaded)
		require.NoError(t, n.Run(ctx))
	}
}

func TestNewJournalHandler(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(systemd.NewJournalHandler(&out, slog.LevelDebug, slog.NewTextHandler))
	log.Debug("a")
	log.With(slog.String("k", "v\n<0>forged")).Info("b")
	log.WithGroup("g").Warn("c", slog.Int("time", 1))
	log.Error("d")
	assert.Equal(t, "<7>level=DEBUG msg=a\n<6>level=INFO msg=b k=\"v\\n<0>forged\"\n<4>level=WARN msg=c g.time=1\n<3>level=ERROR msg=d\n", out.String())
	out.Reset()
	slog.New(systemd.NewJournalHandler(&out, slog.LevelWarn, slog.NewJSONHandler)).Info("hidden")
	assert.Empty(t, out.String())
}

func TestIsJournal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stream"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &st))
	assert.True(t, systemd.IsJournal(f, fmt.Sprintf("%d:%d", st.Dev, st.Ino)))
	for _, other := range []string{"", "1", fmt.Sprintf("%d:%d", st.Dev, st.Ino+1), fmt.Sprintf("%d:%d", st.Dev+1, st.Ino)} {
		assert.False(t, systemd.IsJournal(f, other), other)
	}
}

func ExampleNewJournalHandler() {
	log := slog.New(systemd.NewJournalHandler(os.Stdout, slog.LevelInfo, slog.NewTextHandler))
	log.Warn("pod rejected", slog.String("pod", "default/web"))
	// Output: <4>level=WARN msg="pod rejected" pod=default/web
}
