package deviceplugin_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/devices/deviceplugin"
)

// Of two agents that start at once, after one that was killed, one serves the socket.
func TestRun_OneOfTwoServes(t *testing.T) {
	dir := socketDir(t)
	path := filepath.Join(dir, deviceplugin.SocketName)
	for range 100 {
		stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		require.NoError(t, err)
		stale.SetUnlinkOnClose(false)
		require.NoError(t, stale.Close())
		old := time.Now().Add(-time.Minute)
		require.NoError(t, os.Chtimes(path, old, old))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin, done := make(chan struct{}), make(chan error, 2)
		for range cap(done) {
			s, err := deviceplugin.New(deviceplugin.Config{Dir: dir, Devices: newManager(t)})
			require.NoError(t, err)
			go func() {
				<-begin
				done <- s.Run(ctx)
			}()
		}
		close(begin)
		select {
		case err := <-done:
			require.ErrorIs(t, err, deviceplugin.ErrSocketInUse)
		case <-time.After(soon):
			t.Fatal("both run")
		}
		require.FileExists(t, path)
		cancel()
		require.NoError(t, <-done)
	}
}
