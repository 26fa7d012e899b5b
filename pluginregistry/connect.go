package pluginregistry

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
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

// WithObserver returns an option for Connect: ended is called after each unary call, with the name of the plugin, the full name of the
// method, the name of the status code, which the plugin chooses, and the duration. It must not block. If it is nil, the option does nothing.
func WithObserver(name string, ended func(name, method, code string, duration time.Duration)) grpc.DialOption {
	if ended == nil {
		return grpc.EmptyDialOption{}
	}
	return grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		startTime := time.Now()
		err := invoke(ctx, method, req, reply, conn, opts...)
		ended(name, method, status.Code(err).String(), time.Since(startTime))
		return err
	})
}

// WithBackOff returns an option for Connect: after a failure the connection is tried again with a back-off of 0.1 seconds,
// which grows up to maxDelay. Each attempt has at least timeout.
func WithBackOff(maxDelay, timeout time.Duration) grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxDelay},
		MinConnectTimeout: timeout,
	})
}
