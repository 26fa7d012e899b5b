package logind

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/nodeshutdown"
)

// within returns the result of f, or fails if f waits for what hangs.
func within[T any](t *testing.T, f func() (T, error)) (result T, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		result, err = f()
	}()
	select {
	case <-done:
	case <-time.After(deadline):
		t.Fatal("it waits")
	}
	return result, err
}

// A bus that accepts connections and says nothing.
func TestDial_BusHangs(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	_, err = within(t, func() (nodeshutdown.Login, error) {
		return dial(t.Context(), "unix:path="+socket, "", 50*time.Millisecond)
	})
	require.ErrorIs(t, err, errNoAnswer)
	assert.ErrorContains(t, err, "no answer after 50ms: connect to the system bus: ")
}

// A login manager that hangs costs the connection: what it answers later is not a lock that is never released.
func TestConn_InhibitHangs(t *testing.T) {
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		t.Skip("needs dbus-daemon, of the Debian package dbus")
	}
	for name, want := range map[string]error{"by its own": errNoAnswer, "with the context": context.DeadlineExceeded} {
		t.Run(name, func(t *testing.T) {
			address, dropIns := startBus(t), t.TempDir()
			f := startLogind(t, address, dropIns)
			hangs := make(chan struct{})
			f.mu.Lock()
			f.hangs = hangs
			f.mu.Unlock()
			l := connect(t, address, dropIns)
			requireNext(t, l, false)
			var err error
			for limit := 50 * time.Millisecond; l.(*conn).bus.Connected(); limit *= 2 { // on a busy machine it passes before the lock is asked for
				ctx := t.Context()
				if errors.Is(want, errNoAnswer) {
					l.(*conn).timeout = limit
				} else {
					short, cancel := context.WithTimeout(ctx, limit)
					defer cancel()
					ctx = short
				}
				_, err = within(t, func() (any, error) { return l.Inhibit(ctx, time.Second) })
				require.ErrorIs(t, err, want)
			}
			assert.ErrorContains(t, err, "take an inhibitor lock: ")
			_, ok := <-l.Shutdowns()
			assert.False(t, ok, "a new connection is due")
			close(hangs)
			_ = l.Close()
		})
	}
}
