package embedded

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process that is being started has copies of the descriptors of this one for a moment.
func TestHostPorts_EndWithACopyOfTheirSocket(t *testing.T) {
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	tcp, ok := lis.(*net.TCPListener)
	require.True(t, ok)
	socketCopy, err := tcp.File()
	require.NoError(t, err)
	defer socketCopy.Close()
	h, log := newHostPorts(t, nil)
	h.lis = []net.Listener{lis}
	h.wg.Go(func() { h.accept(lis, 80) })
	h.close()
	require.Empty(t, log.String())
	_, err = new(net.Dialer).DialContext(t.Context(), "tcp", lis.Addr().String())
	require.ErrorContains(t, err, "refused")
	next, err := new(net.ListenConfig).Listen(t.Context(), "tcp", lis.Addr().String())
	require.NoError(t, err, "the next pod can have the port")
	require.NoError(t, next.Close())
}
