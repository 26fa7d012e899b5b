package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/podstream"
)

// A terminal passes keys on only if there is an input for them. Else Ctrl-C has to end the command.
func TestClient_TerminalWithoutInput(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	defer master.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	defer terminal.Close()
	keysEnd := func() bool {
		settings, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
		require.NoError(t, err)
		return settings.Lflag&unix.ISIG != 0
	}
	errNoServer := errors.New("no server")
	for _, withInput := range []bool{true, false} {
		var ended bool
		c := &client{in: terminal, streams: &podstream.Client{DialContext: func(context.Context, string, string) (net.Conn, error) {
			ended = keysEnd()
			return nil, errNoServer
		}}}
		o := podstream.Options{TTY: true}
		if withInput {
			o.Stdin = terminal
		}
		require.ErrorIs(t, c.connect(t.Context(), &url.URL{Scheme: "http", Host: "node"}, o), errNoServer)
		assert.Equal(t, !withInput, ended)
		assert.True(t, keysEnd(), "the terminal is as before")
	}
}
