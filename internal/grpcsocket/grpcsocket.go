// Package grpcsocket serves gRPC on sockets in the file system, as the APIs of a node for its own programs
// are. What clients can ask for at once is bounded, a client that is silent delays no stop, and a panic in a
// call is the error of that call.
package grpcsocket

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/unixsocket"
)

const (
	// Calls above this rate are rejected with ResourceExhausted, as by the kubelet. Clients that watch
	// come all at once after a restart, so of these more may come at a time.
	maxQPS         = 100
	maxBurst       = 10
	maxStreamBurst = 100

	maxConnections = 256
	maxStreams     = 16       // of a connection
	maxBytes       = 64 << 10 // of a request, and of its header

	// handshakeTimeout is how long a connection may be silent before it speaks HTTP/2.
	handshakeTimeout = 10 * time.Second
	// A client that is gone without a word is found by this ping, and its connection closed.
	pingPeriod, pingTimeout = time.Minute, 20 * time.Second
	// idleTimeout ends connections that their clients have forgotten. Others connect again with their next call.
	idleTimeout = 10 * time.Minute
)

// Config describes what a socket serves. Name, Register and Logger are required.
type Config struct {
	Name string // of the API, for logs
	// Register registers the services.
	Register func(grpc.ServiceRegistrar)
	// LimitsClients rejects calls above 100 per second, with bursts of 10 calls and 100 streams, and closes
	// connections that are idle for ten minutes or do not answer a ping.
	LimitsClients bool
	// Ended is called after each call that was not above the rate, with the version of its API and its
	// method. It must not panic. Default: nothing.
	Ended  func(version, method string, err error)
	Logger *slog.Logger
}

// ListenAndServe makes the directory of a socket, with mode 0700 if it is missing, and the socket, and
// serves it as Serve does. The error wraps unixsocket.ErrInUse if another process serves it.
func ListenAndServe(ctx context.Context, path string, cfg Config) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	listener, err := unixsocket.Listen(ctx, path)
	if err != nil {
		return err
	}
	cfg.Logger.Info("API served", slog.String("api", cfg.Name), slog.String("path", path))
	return Serve(ctx, listener, cfg)
}

// Serve serves a listener until ctx is done, and returns nil then. It closes the listener and all
// connections, and returns when no call is under way.
func Serve(ctx context.Context, listener net.Listener, cfg Config) error {
	return cfg.serve(ctx, limitConnections(listener, maxConnections, cfg.Logger.With(slog.String("api", cfg.Name))))
}

func (c *Config) serve(ctx context.Context, listener net.Listener) error {
	var alive keepalive.ServerParameters
	if c.LimitsClients {
		alive = keepalive.ServerParameters{Time: pingPeriod, Timeout: pingTimeout, MaxConnectionIdle: idleTimeout}
	}
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxBytes), grpc.MaxHeaderListSize(maxBytes), grpc.MaxConcurrentStreams(maxStreams),
		grpc.WaitForHandlers(true), grpc.ConnectionTimeout(handshakeTimeout), grpc.KeepaliveParams(alive),
		grpc.UnaryInterceptor(c.unary(rate.NewLimiter(maxQPS, maxBurst))),
		grpc.StreamInterceptor(c.stream(rate.NewLimiter(maxQPS, maxStreamBurst))),
	)
	c.Register(server)
	defer server.Stop() // of a listener that failed there are connections
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func (c *Config) unary(limiter *rate.Limiter) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
		err = c.call(limiter, info.FullMethod, func() error {
			response, err = handler(ctx, req)
			return err
		})
		return response, err
	}
}

func (c *Config) stream(limiter *rate.Limiter) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return c.call(limiter, info.FullMethod, func() error { return handler(server, stream) })
	}
}

// call calls the handler of a method, such as /v1.Pods/List.
func (c *Config) call(limiter *rate.Limiter, fullMethod string, handler func() error) error {
	if c.LimitsClients && !limiter.Allow() {
		return status.Errorf(codes.ResourceExhausted, "more than %d requests per second", maxQPS)
	}
	err := Recover(c.Logger, fullMethod, handler)
	if c.Ended != nil {
		service, method, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
		version, _, _ := strings.Cut(service, ".")
		c.Ended(version, method, err)
	}
	return err
}

// Recover calls what handles a call or a part of it in another goroutine. A panic in it is logged, and is
// an error with code Internal.
func Recover(log *slog.Logger, call string, handler func() error) error {
	err := safe.Call(log, call, handler)
	if errors.Is(err, safe.ErrPanic) {
		return status.Error(codes.Internal, err.Error())
	}
	return err
}
