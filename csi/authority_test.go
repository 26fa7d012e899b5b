package csi

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
)

// A server that is not written in Go rejects a call to a host that cannot be one, such as a path.
func TestRegister_CallsTheDriverAsLocalhost(t *testing.T) {
	var hosts []string
	e := newEnv(t, func(e *testEnv, _ *Config) {
		e.driver.Before = func(ctx context.Context, _ string, _ any) error {
			e.mu.Lock()
			defer e.mu.Unlock()
			hosts = append(hosts, metadata.ValueFromIncomingContext(ctx, ":authority")...)
			return nil
		}
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	require.Equal(t, []string{"localhost", "localhost"}, hosts, "NodeGetCapabilities and NodeGetInfo")
}
