package runtime_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

var errInside = errors.New("connected inside the runtime")

type dialingRuntime struct{}

func (dialingRuntime) DialContext(context.Context, string, string) (net.Conn, error) {
	return nil, errInside
}

type wrappedRuntime struct{ rt any }

func (w wrappedRuntime) Unwrap() any { return w.rt }

// Probes reach the pods of a runtime that has a network of its own, also if it is
// decorated, and the pods of any other through the network.
func TestDialer(t *testing.T) {
	for _, rt := range []any{dialingRuntime{}, wrappedRuntime{dialingRuntime{}}} {
		_, err := runtime.Dialer(rt)(t.Context(), "tcp", "10.0.0.1:80")
		require.ErrorIs(t, err, errInside)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	conn, err := runtime.Dialer(struct{}{})(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	assert.Equal(t, l.Addr().String(), conn.RemoteAddr().String())
	require.NoError(t, conn.Close())
}
