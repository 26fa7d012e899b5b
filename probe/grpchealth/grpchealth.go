// Package grpchealth asks servers whether they are well, by the gRPC Health
// Checking Protocol. It is the edge at which gRPC meets probes: its Check is what
// probe.Config takes as GRPC.
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
	// Dial makes connections; default: a net.Dialer's.
	Dial      func(ctx context.Context, network, address string) (net.Conn, error)
	UserAgent string // default kube-probe/1.37
}

// ErrNotServing is wrapped by the error for a server that answers and is not well.
var ErrNotServing = errors.New("not serving")

// answerLimit is how long an answer may be: the protocol's has a few bytes.
const answerLimit = 10 << 10

// Checker asks servers whether they are well.
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
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerLimit)),
	}}
}

// Check asks the server at address, host:port, whether service is well; the empty
// service is the server as a whole. It returns nil only if it is, and ends when
// ctx does. The connection is made for this call alone and is not encrypted.
func (c *Checker) Check(ctx context.Context, address, service string) error {
	conn, err := grpc.NewClient("passthrough:///"+address, c.opts...)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", address, err)
	}
	defer conn.Close() //nolint:errcheck // the answer is in
	res, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	if err != nil {
		return fmt.Errorf("check health at %s: %w", address, err)
	}
	if res.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("service %q: %w: %s", service, ErrNotServing, res.GetStatus())
	}
	return nil
}
