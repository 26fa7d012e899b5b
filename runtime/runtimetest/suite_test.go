package runtimetest_test

import (
	"context"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/runtime/embedded/stream"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// embeddedRuntime returns a function that connects to a new embedded runtime.
func embeddedRuntime(executor func(testing.TB) embedded.Executor) func(testing.TB) *grpc.ClientConn {
	return func(t testing.TB) *grpc.ClientConn {
		second := embedded.Image{Ref: "example.com/second:1", StopSignal: "SIGUSR1"}
		rt, err := embedded.New(embedded.Config{Executor: executor(t), Images: []embedded.Image{second}, HostPorts: true})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, rt.Close()) })
		serveStreams(t, rt)
		cc, err := rt.Dial()
		require.NoError(t, err)
		t.Cleanup(func() { _ = cc.Close() })
		return cc.ClientConn
	}
}

// serveStreams serves exec, attach and port-forward until the test ends.
func serveStreams(t testing.TB, rt *embedded.Runtime) {
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
}

func TestRuntime_Simulated(t *testing.T) {
	runtimetest.TestRuntime(t, embeddedRuntime(func(testing.TB) embedded.Executor {
		return simulated.New(simulated.Config{})
	}), runtimetest.WithoutProcesses(), runtimetest.SecondImage("example.com/second:1"), runtimetest.LargeListSize(500))
}

func TestRuntime_HostProcess(t *testing.T) {
	runtimetest.TestRuntime(t, embeddedRuntime(func(t testing.TB) embedded.Executor {
		return hostprocess.New(hostprocess.Config{Root: t.TempDir(), Unprivileged: true})
	}), runtimetest.SecondImage("example.com/second:1"), runtimetest.LargeListSize(500),
		runtimetest.WithoutResourceLimits(), runtimetest.WithoutIsolation())
}

func TestRuntime_HostProcessOfRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts are made in namespaces")
	}
	runtimetest.TestRuntime(t, embeddedRuntime(func(testing.TB) embedded.Executor {
		return hostprocess.New(hostprocess.Config{})
	}), runtimetest.SecondImage("example.com/second:1"), runtimetest.WithoutResourceLimits(), runtimetest.WithoutConfinement())
}

func TestCases_HaveUniqueNames(t *testing.T) {
	names := runtimetest.Cases()
	assert.GreaterOrEqual(t, len(names), 100)
	slices.Sort(names)
	assert.Len(t, slices.Compact(slices.Clone(names)), len(names), "two cases have the same name: %q", names)
}
