// Package grpchealth checks the health of servers with the gRPC Health Checking Protocol,
// as pkg/probe/grpc does in the kubelet. It is separate from package probe so that only
// programs with grpc probes link gRPC:
//
//	prober, err := probe.New(probe.Config{PodCache: &cache, GRPC: grpchealth.New(grpchealth.Config{}).Check})
package grpchealth

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Config describes a Checker.
type Config struct {
	// Dial connects to servers. Default: a net.Dialer.
	Dial      func(ctx context.Context, network, address string) (net.Conn, error)
	UserAgent string // Default: kube-probe/1.37
}

// ErrNotServing is wrapped by the error for a server that reports another status than
// SERVING.
var ErrNotServing = errors.New("not serving")

// maxResponse is the maximum size of a response; those of the protocol have a few bytes.
const maxResponse = 10 << 10

// Checker checks the health of servers.
type Checker struct{ opts []grpc.DialOption }

// New returns a Checker. It does no I/O.
func New(cfg Config) *Checker {
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{KeepAlive: -1}).DialContext
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "kube-probe/1.37"
	}
	return &Checker{opts: []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return cfg.Dial(ctx, "tcp", address)
		}),
		grpc.WithUserAgent(cfg.UserAgent),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
		grpc.WithMaxHeaderListSize(maxResponse), // the message of an error is in a header
	}}
}

// Check returns nil only if the server at address (host:port) reports the service as
// SERVING. An empty service stands for the server as a whole. Check returns when ctx
// ends. It uses a connection of its own, without encryption.
func (c *Checker) Check(ctx context.Context, address, service string) error {
	conn, err := grpc.NewClient("passthrough:///"+address, c.opts...)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", address, err)
	}
	defer conn.Close() //nolint:errcheck // the response was received
	res, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	if err != nil {
		return fmt.Errorf("check health at %s: %w", address, err)
	}
	if res.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("service %q: %w: %s", service, ErrNotServing, res.GetStatus())
	}
	return nil
}
