package pluginregistry

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// Connect returns a connection to the gRPC server of a plugin or driver at the path of a socket, such as
// Plugin.Endpoint. It does not block: the first call makes the connection. Calls name the host localhost, as
// a kubelet's do: servers in other languages reject the path of a socket as a host. The caller closes it.
func Connect(path string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+path, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}),
	}, opts...)...)
}

// WithBackOff returns an option for Connect: after a failure the connection is tried again with a back-off of 0.1 seconds,
// which grows up to maxDelay. Each attempt has at least timeout.
func WithBackOff(maxDelay, timeout time.Duration) grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxDelay},
		MinConnectTimeout: timeout,
	})
}
