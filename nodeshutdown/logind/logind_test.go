package logind

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/nodeshutdown"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const deadline = time.Minute

// startBus runs a message bus of its own and returns its address.
func startBus(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		t.Skip("needs dbus-daemon, of the Debian package dbus")
	}
	dir := t.TempDir()
	socket, config := filepath.Join(dir, "bus"), filepath.Join(dir, "bus.conf")
	require.NoError(t, os.WriteFile(config, []byte(`<busconfig><type>session</type><listen>unix:path=`+socket+`</listen>
		<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`), 0o600))
	daemon := exec.CommandContext(t.Context(), "dbus-daemon", "--nofork", "--config-file="+config)
	daemon.Stderr = t.Output()
	require.NoError(t, daemon.Start())
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	require.Eventually(t, func() bool { // the socket exists a moment before it accepts connections
		client, err := net.Dial("unix", socket)
		return err == nil && client.Close() == nil
	}, deadline, 10*time.Millisecond)
	return "unix:path=" + socket
}

// fakeLogind is a login manager, and the part of systemd that sends signals to it.
type fakeLogind struct {
	bus    *dbus.Conn
	dropIn string        // read at SIGHUP
	deaf   bool          // does not read it
	hangs  chan struct{} // Inhibit answers when it is closed; nil: at once

	mu       sync.Mutex
	limit    time.Duration
	down     bool
	requests []string
	sent     *os.File // the end of the lock that the client has too
	lock     *os.File // ends when the client's is closed
}

func startLogind(t *testing.T, address, dropInDir string) *fakeLogind {
	t.Helper()
	bus, err := dbus.Connect(address)
	require.NoError(t, err)
	f := &fakeLogind{bus: bus, dropIn: filepath.Join(dropInDir, dropInName), limit: 5 * time.Second}
	t.Cleanup(func() {
		require.NoError(t, bus.Close())
		f.closeSent()
		if lock := f.taken(); lock != nil {
			_ = lock.Close()
		}
	})
	require.NoError(t, bus.Export(f, object, manager))
	require.NoError(t, bus.Export(f, object, "org.freedesktop.DBus.Properties"))
	require.NoError(t, bus.Export(f, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"))
	for _, name := range []string{service, "org.freedesktop.systemd1"} {
		_, err := bus.RequestName(name, dbus.NameFlagDoNotQueue)
		require.NoError(t, err)
	}
	return f
}

func (f *fakeLogind) Get(_, name string) (dbus.Variant, *dbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch name {
	case "InhibitDelayMaxUSec":
		return dbus.MakeVariant(uint64(f.limit / time.Microsecond)), nil //nolint:gosec // not negative
	case "PreparingForShutdown":
		return dbus.MakeVariant(f.down), nil
	default:
		return dbus.Variant{}, dbus.MakeFailedError(os.ErrNotExist)
	}
}

func (f *fakeLogind) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	f.mu.Lock()
	hangs := f.hangs
	f.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, strings.Join([]string{what, who, why, mode}, "|"))
	if f.down {
		return 0, dbus.NewError("org.freedesktop.login1.OperationInProgress", []any{"in progress"})
	}
	var err error
	if f.lock, f.sent, err = os.Pipe(); err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	return dbus.UnixFD(f.sent.Fd()), nil //nolint:gosec // a file descriptor
}

func (f *fakeLogind) KillUnit(unit, process string, signal int32) *dbus.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, strings.Join([]string{unit, process}, "|"))
	text, err := os.ReadFile(f.dropIn)
	if err != nil || signal != 1 {
		return dbus.MakeFailedError(os.ErrInvalid)
	}
	_, seconds, _ := strings.Cut(string(text), "InhibitDelayMaxSec=")
	if d, err := time.ParseDuration(strings.TrimSpace(seconds) + "s"); err == nil && !f.deaf {
		time.AfterFunc(3*reloadPeriod, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.limit = d
		})
	}
	return nil
}

// set begins or cancels a shutdown.
func (f *fakeLogind) set(t *testing.T, down bool) {
	t.Helper()
	f.mu.Lock()
	f.down = down
	f.mu.Unlock()
	require.NoError(t, f.bus.Emit(object, manager+"."+signal, down))
}

func (f *fakeLogind) closeSent() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sent != nil {
		_ = f.sent.Close()
		f.sent = nil
	}
}

// received returns the calls so far.
func (f *fakeLogind) received() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// taken returns the end of the lock that is read; nil before Inhibit.
func (f *fakeLogind) taken() *os.File {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lock
}

func connect(t *testing.T, address, dropIns string) nodeshutdown.Login {
	t.Helper()
	c, err := dial(t.Context(), address, dropIns, timeout)
	require.NoError(t, err)
	return c
}

func requireNext(t *testing.T, c nodeshutdown.Login, want bool) {
	t.Helper()
	select {
	case down, ok := <-c.Shutdowns():
		require.True(t, ok)
		require.Equal(t, want, down)
	case <-time.After(deadline):
		t.Fatal("no change was reported")
	}
}

func TestDial_ReportsShutdowns(t *testing.T) {
	address, dropIns := startBus(t), t.TempDir()
	f := startLogind(t, address, dropIns)
	c := connect(t, address, dropIns)
	requireNext(t, c, false)
	require.NoError(t, f.bus.Emit(object, manager+".PrepareForSleep", true))
	require.NoError(t, f.bus.Emit(object, manager+"."+signal, "hostile"))
	f.set(t, true)
	requireNext(t, c, true)
	f.set(t, false)
	requireNext(t, c, false)
	f.set(t, true)
	other := connect(t, address, dropIns)
	requireNext(t, other, true)
	_, err := other.Inhibit(t.Context(), time.Second)
	require.ErrorContains(t, err, "in progress")
	require.NoError(t, other.Close())
	require.NoError(t, c.Close()) // with a change that was not received
}

func TestConn_Inhibit(t *testing.T) {
	address, dropIns := startBus(t), filepath.Join(t.TempDir(), "logind.conf.d")
	f := startLogind(t, address, dropIns)
	c := connect(t, address, dropIns)
	defer func() { require.NoError(t, c.Close()) }()

	lock, err := c.Inhibit(t.Context(), 5*time.Second)
	require.NoError(t, err)
	assert.Equal(t, []string{"shutdown|sublet|Pods are terminated before the machine shuts down|delay"}, f.received(), "the limit suffices")
	f.closeSent()
	released := make(chan error, 1)
	go func() {
		_, err := f.taken().Read(make([]byte, 1))
		released <- err
	}()
	select {
	case <-released:
		t.Fatal("released too early")
	default:
	}
	require.NoError(t, lock.Close())
	select {
	case err := <-released:
		require.ErrorIs(t, err, io.EOF)
	case <-time.After(deadline):
		t.Fatal("not released")
	}
}

func TestConn_InhibitRaisesLimit(t *testing.T) {
	address, dropIns := startBus(t), filepath.Join(t.TempDir(), "logind.conf.d")
	f := startLogind(t, address, dropIns)
	c := connect(t, address, dropIns)
	defer func() { require.NoError(t, c.Close()) }()

	lock, err := c.Inhibit(t.Context(), 90*time.Second)
	require.NoError(t, err)
	require.NoError(t, lock.Close())
	assert.Equal(t, "systemd-logind.service|main", f.received()[0])
	assert.Len(t, f.received(), 2)
	text, err := os.ReadFile(f.dropIn)
	require.NoError(t, err)
	assert.Contains(t, string(text), "[Login]\nInhibitDelayMaxSec=90\n")

	f.mu.Lock()
	f.deaf = true
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*reloadPeriod)
	defer cancel()
	_, err = c.Inhibit(ctx, 100*time.Second)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	lock, err = c.Inhibit(t.Context(), 100*time.Second)
	require.NoError(t, lock.Close(), "a shorter lock is better than none")
	require.EqualError(t, err, "InhibitDelayMaxSec is 1m30s, and pods need 1m40s: the login manager does not follow "+f.dropIn+"; remove what overrides it")

	require.NoError(t, os.RemoveAll(dropIns))
	require.NoError(t, os.WriteFile(dropIns, nil, 0o600))
	lock, err = c.Inhibit(t.Context(), 100*time.Second)
	require.NoError(t, lock.Close(), "nor does a configuration that cannot be changed prevent it")
	require.ErrorContains(t, err, "raise InhibitDelayMaxSec from 1m30s to 1m40s: ")
}

func TestDial_ConnectionLost(t *testing.T) {
	_, err := dial(t.Context(), "unix:path="+filepath.Join(t.TempDir(), "none"), "", timeout)
	require.ErrorContains(t, err, "connect to the system bus: ")

	address := startBus(t)
	_, err = dial(t.Context(), address, "", timeout)
	require.ErrorContains(t, err, "read PreparingForShutdown of the login manager: ")
}

func TestConn_BusEnds(t *testing.T) {
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		t.Skip("needs dbus-daemon, of the Debian package dbus")
	}
	var c nodeshutdown.Login
	require.True(t, t.Run("bus", func(t *testing.T) {
		address := startBus(t)
		startLogind(t, address, "")
		c = connect(t, address, "")
		requireNext(t, c, false)
	}))
	select {
	case _, ok := <-c.Shutdowns():
		require.False(t, ok)
	case <-time.After(deadline):
		t.Fatal("the end of the connection is not reported")
	}
	_, err := c.Inhibit(t.Context(), time.Second)
	require.Error(t, err)
	_ = c.Close()
}
