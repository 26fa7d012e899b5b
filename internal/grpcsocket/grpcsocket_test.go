package grpcsocket

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	api "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// service is an API with a call and a stream.
type service struct {
	api.UnimplementedHealthServer

	watching chan struct{} // receives when a Watch has ended
}

func (s *service) Check(_ context.Context, r *api.HealthCheckRequest) (*api.HealthCheckResponse, error) {
	if r.GetService() == "panic" {
		panic("secret")
	}
	return &api.HealthCheckResponse{}, nil
}

func (s *service) Watch(r *api.HealthCheckRequest, stream grpc.ServerStreamingServer[api.HealthCheckResponse]) error {
	if r.GetService() == "panic" {
		panic("secret")
	}
	if err := stream.Send(&api.HealthCheckResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	time.Sleep(time.Second) // of the bubble: it takes a while to end
	s.watching <- struct{}{}
	return nil
}

// served is a service that is served in a bubble.
type served struct {
	service

	listener *bufconn.Listener
	logs     bytes.Buffer
	cancel   context.CancelFunc
	done     chan error
}

func serve(t *testing.T, cfg Config) *served {
	t.Helper()
	return serveUpTo(t, maxConnections, cfg)
}

func serveUpTo(t *testing.T, connections int, cfg Config) *served {
	t.Helper()
	s := &served{service: service{watching: make(chan struct{}, 100)}, listener: bufconn.Listen(64 << 10), done: make(chan error, 1)}
	cfg.Name, cfg.Logger = "test", slog.New(slog.NewTextHandler(&s.logs, nil))
	cfg.Register = func(r grpc.ServiceRegistrar) { api.RegisterHealthServer(r, &s.service) }
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(t.Context())
	go func() { s.done <- cfg.serve(ctx, limitConnections(s.listener, connections, cfg.Logger)) }()
	return s
}

// stop stops the server, and returns how long that took.
func (s *served) stop(t *testing.T) time.Duration {
	t.Helper()
	synctest.Wait()
	began := time.Now()
	s.cancel()
	require.NoError(t, <-s.done)
	return time.Since(began)
}

func (s *served) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := s.listener.Dial()
	require.NoError(t, err)
	return conn
}

// isOpen reports whether the server has left a connection open.
func isOpen(t *testing.T, conn net.Conn) bool {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err := io.Copy(io.Discard, conn) // the server speaks first
	return err != nil
}

// connect returns a client, which is to be closed.
func (s *served) connect(t *testing.T) (*grpc.ClientConn, api.HealthClient) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///s", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.listener.DialContext(ctx) }))
	require.NoError(t, err)
	return conn, api.NewHealthClient(conn)
}

func check(t *testing.T, c api.HealthClient, name string) codes.Code {
	t.Helper()
	_, err := c.Check(t.Context(), &api.HealthCheckRequest{Service: name})
	return status.Code(err)
}

// SV-15: a client that connects and says nothing delays no stop, and is not kept.
func TestServe_SilentClients(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, s *served, conn net.Conn){
		"delay no stop": func(t *testing.T, s *served, conn net.Conn) {
			require.Zero(t, s.stop(t))
			require.False(t, isOpen(t, conn))
		},
		"are disconnected": func(t *testing.T, s *served, conn net.Conn) {
			began := time.Now()
			_, err := io.Copy(io.Discard, conn)
			require.NoError(t, err)
			require.Equal(t, handshakeTimeout, time.Since(began))
			require.Zero(t, s.stop(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, Config{})
				conn := s.dial(t)
				test(t, s, conn)
				require.NoError(t, conn.Close())
			})
		})
	}
}

// SV-15: a program that forgets its connections keeps neither others out for good nor the node's memory.
func TestServe_BoundsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns := make([]net.Conn, 4)
		s := serveUpTo(t, len(conns), Config{})
		for i := range conns {
			conns[i] = s.dial(t)
		}
		isRejected := func() bool {
			conn := s.dial(t)
			defer conn.Close()
			return !isOpen(t, conn)
		}
		require.True(t, isRejected())
		require.True(t, isRejected())
		require.NoError(t, conns[0].Close())
		synctest.Wait()
		require.False(t, isRejected())
		synctest.Wait()
		conns[0] = s.dial(t)
		require.True(t, isRejected())
		require.Equal(t, 1, strings.Count(s.logs.String(), "too many are open"), s.logs.String())
		require.Zero(t, s.stop(t))
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
	})
}

func TestServe_EndsIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, Config{LimitsClients: true})
		conn, c := s.connect(t)
		for range 2 {
			require.Equal(t, codes.OK, check(t, c, ""))
			require.Equal(t, connectivity.Ready, conn.GetState())
			time.Sleep(idleTimeout + time.Second)
			synctest.Wait()
			require.Equal(t, connectivity.Idle, conn.GetState())
		}
		require.NoError(t, conn.Close())
		require.Zero(t, s.stop(t))
	})
}

// AG-9: the next call is answered.
func TestServe_RecoversPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var codesOf []codes.Code
		s := serve(t, Config{Ended: func(_, _ string, err error) { codesOf = append(codesOf, status.Code(err)) }})
		conn, c := s.connect(t)
		require.Equal(t, codes.Internal, check(t, c, "panic"))
		stream, err := c.Watch(t.Context(), &api.HealthCheckRequest{Service: "panic"})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, codes.Internal, status.Code(err))
		require.Equal(t, codes.OK, check(t, c, ""))
		require.NoError(t, conn.Close())
		require.Zero(t, s.stop(t))
		require.Equal(t, []codes.Code{codes.Internal, codes.Internal, codes.OK}, codesOf)
		require.Contains(t, s.logs.String(), "grpcsocket_test.go", "with the stack")
	})
}

// A client that asks in a loop does not keep the agent busy, with streams either.
func TestServe_LimitsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := map[string]int{}
		s := serve(t, Config{LimitsClients: true, Ended: func(version, method string, err error) {
			ended[version+" "+method+" "+status.Code(err).String()]++
		}})
		conn, c := s.connect(t)
		for i := range maxBurst + 2 {
			require.Equal(t, i >= maxBurst, check(t, c, "") == codes.ResourceExhausted)
		}
		for i := range maxStreamBurst + 2 {
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := c.Watch(ctx, &api.HealthCheckRequest{Service: "panic"})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.Equal(t, i >= maxStreamBurst, status.Code(err) == codes.ResourceExhausted, "%v", err)
			cancel()
		}
		time.Sleep(time.Second / maxQPS)
		require.Equal(t, codes.OK, check(t, c, ""))
		require.Equal(t, codes.ResourceExhausted, check(t, c, ""))
		require.NoError(t, conn.Close())
		require.Zero(t, s.stop(t))
		require.Equal(t, map[string]int{"grpc Check OK": maxBurst + 1, "grpc Watch Internal": maxStreamBurst}, ended)
	})
}

func TestServe_BoundsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, Config{})
		conn, c := s.connect(t)
		require.Equal(t, codes.ResourceExhausted, check(t, c, strings.Repeat("x", maxBytes)))
		_, err := c.Check(metadata.AppendToOutgoingContext(t.Context(), "k", strings.Repeat("x", maxBytes)), &api.HealthCheckRequest{})
		require.Error(t, err)
		require.Equal(t, codes.OK, check(t, c, strings.Repeat("x", maxBytes/2)))
		require.NoError(t, conn.Close())
		require.Zero(t, s.stop(t))
	})
}

// Also when the listener fails, no call goes on.
func TestServe_WaitsForCalls(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *served) error{
		"stop":     func(t *testing.T, s *served) error { s.cancel(); return <-s.done },
		"listener": func(t *testing.T, s *served) error { require.NoError(t, s.listener.Close()); return <-s.done },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, Config{})
				conn, c := s.connect(t)
				stream, err := c.Watch(t.Context(), &api.HealthCheckRequest{})
				require.NoError(t, err)
				_, err = stream.Recv()
				require.NoError(t, err)
				err = end(t, s)
				require.Equal(t, name == "listener", err != nil, "%v", err)
				require.Len(t, s.watching, 1)
				_, err = stream.Recv()
				require.Equal(t, codes.Unavailable, status.Code(err))
				require.NoError(t, conn.Close())
				s.cancel()
			})
		})
	}
}
