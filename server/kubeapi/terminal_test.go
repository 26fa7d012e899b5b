//go:build linux

package kubeapi_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/logtest"
)

// terminal is a kubectl on a terminal.
type terminal struct {
	master *os.File
	cmd    *exec.Cmd
	out    logtest.Buffer
	read   chan struct{} // closed when all output is read
}

// terminal starts a kubectl on a terminal of a size.
func (c *cluster) terminal(t *testing.T, args string, rows, columns uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	fd := int(master.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	tty := &terminal{master: master, cmd: c.command(t, args), read: make(chan struct{})}
	tty.resize(t, rows, columns)
	tty.cmd.Stdin, tty.cmd.Stdout, tty.cmd.Stderr = slave, slave, slave
	tty.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, tty.cmd.Start())
	require.NoError(t, slave.Close())
	go func() {
		defer close(tty.read)
		_, _ = io.Copy(&tty.out, master) // ends with the process
	}()
	t.Cleanup(func() {
		_ = tty.cmd.Process.Kill()
		_ = tty.cmd.Wait()
		<-tty.read
		_ = master.Close()
	})
	return tty
}

func (tty *terminal) resize(t *testing.T, rows, columns uint16) {
	t.Helper()
	require.NoError(t, unix.IoctlSetWinsize(int(tty.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}))
}

// prints types a line until something is printed that the line does not contain.
func (tty *terminal) prints(t *testing.T, line, want string) {
	t.Helper()
	const period = 300 * time.Millisecond
	from := len(tty.out.String())
	require.Eventually(t, func() bool {
		if strings.Contains(tty.out.String()[from:], want) {
			return true
		}
		_, err := io.WriteString(tty.master, line)
		assert.NoError(t, err)
		return false
	}, testTimeout, period, "%s: %q", line, &tty.out)
}

// end types a line that ends the process, and returns its exit code.
func (tty *terminal) end(t *testing.T, line string) int {
	t.Helper()
	_, err := io.WriteString(tty.master, line)
	require.NoError(t, err)
	return exitCode(t, tty.cmd.Wait(), &tty.out)
}
