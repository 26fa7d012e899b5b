package cgroup

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// silentSystemd serves systemd's socket and authorizes a connection or not, and answers nothing else.
type silentSystemd struct {
	socket     string
	authorizes bool
}

func startSilentSystemd(t *testing.T, authorizes bool) *silentSystemd {
	t.Helper()
	s := &silentSystemd{socket: filepath.Join(t.TempDir(), "private"), authorizes: authorizes}
	listener, err := net.Listen("unix", s.socket)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go s.serve(conn)
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return s
}

func (s *silentSystemd) serve(conn net.Conn) {
	in := bufio.NewReader(conn)
	for s.authorizes {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		answer := "REJECTED EXTERNAL\r\n"
		if strings.HasPrefix(line, "AUTH EXTERNAL") {
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
		}
		if strings.HasPrefix(line, "BEGIN") {
			break
		}
		_, _ = conn.Write([]byte(answer))
	}
	_, _ = io.Copy(io.Discard, in)
}

// A systemd that hangs costs the time of one call, not the worker of a pod.
func TestBus_SystemdHangs(t *testing.T) {
	for name, authorizes := range map[string]bool{"at the handshake": false, "at the first call": true} {
		t.Run(name, func(t *testing.T) {
			b := &bus{socket: startSilentSystemd(t, authorizes).socket}
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- b.start(ctx, "kubepods.slice", limits{}) }()
				select {
				case err := <-done:
					require.ErrorIs(t, err, context.DeadlineExceeded)
				case <-time.After(time.Minute):
					t.Fatal("it waits")
				}
			}
		})
	}
}

// A connection ends with the first message that is not read in time.
func TestBoundedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, peer := net.Pipe()
		defer func() { _ = peer.Close() }()
		began := time.Now()
		_, err := boundedWrites{own}.Write([]byte("message"))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.Equal(t, unitTimeout, time.Since(began))
		_, err = peer.Read(make([]byte, 1))
		require.Error(t, err)
	})
}
