package grpchealth_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sublet-dev/agent/probe/grpchealth"
)

// healthServer is the health service. It records the user agents.
type healthServer struct {
	*health.Server
	agents []string
}

func (w *healthServer) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	w.agents = append(w.agents, md.Get("user-agent")...)
	return w.Server.Check(ctx, req)
}

// PB-1: grpc probes.
func TestChecker_Check(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1 << 16)
		srv := grpc.NewServer()
		w := &healthServer{Server: health.NewServer()}
		healthv1.RegisterHealthServer(srv, w)
		w.SetServingStatus("ill", healthv1.HealthCheckResponse_NOT_SERVING)
		go srv.Serve(l)
		defer srv.Stop()
		var dialed []string
		c := grpchealth.New(grpchealth.Config{Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
			dialed = append(dialed, address)
			return l.DialContext(ctx)
		}})
		require.NoError(t, c.Check(t.Context(), "[fd00::1]:9000", ""))
		require.ErrorIs(t, c.Check(t.Context(), "pod:1", "ill"), grpchealth.ErrNotServing)
		assert.Equal(t, codes.NotFound, status.Code(c.Check(t.Context(), "pod:1", "unknown")))
		assert.Equal(t, []string{"[fd00::1]:9000", "pod:1", "pod:1"}, dialed)
		assert.Contains(t, w.agents[0], "kube-probe/1.37")
	})
}

// PB-1: a server cannot make the node read, and keep in the status of a pod, as much as it likes.
func TestChecker_LargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1 << 16)
		srv := grpc.NewServer(grpc.UnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
			return nil, status.Error(codes.Internal, strings.Repeat("x", 4<<20))
		}))
		healthv1.RegisterHealthServer(srv, health.NewServer())
		go srv.Serve(l)
		defer srv.Stop()
		c := grpchealth.New(grpchealth.Config{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) }})
		err := c.Check(t.Context(), "pod:1", "")
		require.Error(t, err)
		assert.Less(t, len(err.Error()), 1<<10)
	})
}

// PB-2: a server that accepts and does not respond, and one that closes the connection.
func TestChecker_NoResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var others []net.Conn
		silent := grpchealth.New(grpchealth.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
			mine, theirs := net.Pipe()
			others = append(others, theirs)
			return mine, nil
		}})
		closed := grpchealth.New(grpchealth.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, fmt.Errorf("connection refused")
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorContains(t, closed.Check(ctx, "pod:1", ""), "connection refused")
		assert.Zero(t, time.Since(began), "a refusal is an answer")
		assert.Equal(t, codes.DeadlineExceeded, status.Code(silent.Check(ctx, "pod:1", "")))
		assert.Equal(t, time.Second, time.Since(began))
		for _, c := range others {
			c.Close()
		}
	})
}

func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	srv := grpc.NewServer()
	healthv1.RegisterHealthServer(srv, health.NewServer())
	go srv.Serve(l)
	defer srv.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(grpchealth.New(grpchealth.Config{}).Check(ctx, l.Addr().String(), ""))
	// Output: <nil>
}
