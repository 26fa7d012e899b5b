package runtimetest

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/runtime/embedded/stream"
)

// suite starts the runtime of the mutant behind a proxy that makes its defect.
func (m mutant) suite(t *testing.T) *suite {
	s := newSuite(WithoutResourceLimits())
	s.logs = t.TempDir()
	var executor embedded.Executor = simulated.New(simulated.Config{})
	if m.runs != simulation {
		executor = hostprocess.New(hostprocess.Config{Unprivileged: m.runs == hostProcesses})
	}
	if m.executor != nil {
		executor = m.executor(executor)
	}
	rt, err := embedded.New(embedded.Config{Executor: executor})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server, err := stream.New(rt, lis)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})

	direct, err := rt.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = direct.Close() })
	var rules []Rule
	if m.response != nil {
		rules = append(rules, Rule{Fault: Corrupt, Mutate: m.response})
	}
	p, err := NewProxy(requestMutator{direct, m.request}, 1, rules...)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	cc, err := p.Dial()
	require.NoError(t, err)
	s.cc = cc.ClientConn
	t.Cleanup(func() { _ = s.cc.Close() })
	require.NoError(t, s.getImages(t.Context()))
	return s
}

// requestMutator changes requests on their way to a runtime.
type requestMutator struct {
	grpc.ClientConnInterface
	mutate func(any)
}

func (r requestMutator) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	if r.mutate != nil {
		r.mutate(req)
	}
	return r.ClientConnInterface.Invoke(ctx, method, req, resp, opts...)
}

// onRequest returns a mutation of the requests of one type.
func onRequest[R any](mutate func(*R)) func(any) {
	return func(req any) {
		if r, ok := req.(*R); ok {
			mutate(r)
		}
	}
}

// onResponse returns a mutation of the responses of one type.
func onResponse[R any](mutate func(*R)) func(string, proto.Message) {
	return func(_ string, resp proto.Message) {
		if r, ok := any(resp).(*R); ok {
			mutate(r)
		}
	}
}

// onContainer returns a mutation of the configurations of containers.
func onContainer(mutate func(*v1.ContainerConfig)) func(any) {
	return onRequest(func(r *v1.CreateContainerRequest) {
		if r.GetConfig() != nil {
			mutate(r.Config)
		}
	})
}

// onStatus returns a mutation of the statuses of containers.
func onStatus(mutate func(*v1.ContainerStatus)) func(string, proto.Message) {
	return onResponse(func(r *v1.ContainerStatusResponse) {
		if r.GetStatus() != nil {
			mutate(r.Status)
		}
	})
}

// lineExecutor loses what follows the last newline of a container's output.
type lineExecutor struct{ embedded.Executor }

func (e lineExecutor) Unwrap() any { return e.Executor }

func (e lineExecutor) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	sio.Stdout = &lineWriter{to: sio.Stdout}
	return e.Executor.Start(ctx, c, sio, exited)
}

// lineWriter passes only whole lines on.
type lineWriter struct {
	to   io.Writer
	rest []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	end := bytes.LastIndexByte(w.rest, '\n') + 1
	_, err := w.to.Write(w.rest[:end])
	w.rest = w.rest[end:]
	return len(p), err
}

// detachingExecutor does not kill commands whose callers have given up.
type detachingExecutor struct{ embedded.Executor }

func (e detachingExecutor) Unwrap() any { return e.Executor }

func (e detachingExecutor) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	p, err := e.Executor.Start(ctx, c, sio, exited)
	if err != nil {
		return nil, err
	}
	return detachingProcess{p}, nil
}

type detachingProcess struct{ embedded.Process }

func (p detachingProcess) Unwrap() any { return p.Process }

func (p detachingProcess) Exec(ctx context.Context, x embedded.Exec) (int32, error) {
	type result struct {
		code int32
		err  error
	}
	done := make(chan result, 1)
	go func() { // ends with the container
		code, err := p.Process.Exec(context.WithoutCancel(ctx), x)
		done <- result{code, err}
	}()
	select {
	case r := <-done:
		return r.code, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
