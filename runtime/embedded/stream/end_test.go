package stream

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// The handler of a connection that it took over can begin a stream after the server has
// ended: port-forwards begin when the client opens them.
func TestServer_EndsStreamsThatBeginTooLate(t *testing.T) {
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
	require.NoError(t, err)
	defer rt.Close()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s, err := New(rt, lis)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	inTime, end := s.begin(t.Context())
	defer end()
	require.NoError(t, inTime.Err())
	cancel()
	require.NoError(t, <-ended)

	<-inTime.Done()
	late, end := s.begin(t.Context())
	defer end()
	assert.ErrorIs(t, late.Err(), context.Canceled)
}
