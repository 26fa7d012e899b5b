package runtimetest_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// embeddedRuntime dials an embedded runtime.
func embeddedRuntime(executor func(testing.TB) embedded.Executor) func(testing.TB) *grpc.ClientConn {
	return func(t testing.TB) *grpc.ClientConn {
		rt, err := embedded.New(embedded.Config{Executor: executor(t)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, rt.Close()) })
		cc, err := rt.Dial()
		require.NoError(t, err)
		t.Cleanup(func() { _ = cc.Close() })
		return cc.ClientConn
	}
}

func TestSimulatedRuntime(t *testing.T) {
	runtimetest.TestRuntime(t, embeddedRuntime(func(testing.TB) embedded.Executor {
		return embedded.NewSimulated(embedded.SimulatedConfig{})
	}), runtimetest.WithoutProcesses(), runtimetest.SecondImage("example.com/second:1"), runtimetest.LargeListSize(500))
}

func TestHostProcessRuntime(t *testing.T) {
	runtimetest.TestRuntime(t, embeddedRuntime(func(t testing.TB) embedded.Executor {
		return embedded.NewHostProcess(embedded.HostConfig{Root: t.TempDir(), Unprivileged: true})
	}), runtimetest.SecondImage("example.com/second:1"), runtimetest.LargeListSize(500),
		runtimetest.WithoutResourceLimits())
}

func TestHostProcessRuntimeOfRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts are made in namespaces")
	}
	runtimetest.TestRuntime(t, embeddedRuntime(func(testing.TB) embedded.Executor {
		return embedded.NewHostProcess(embedded.HostConfig{})
	}), runtimetest.SecondImage("example.com/second:1"), runtimetest.WithoutResourceLimits())
}

func TestThereAreEnoughCases(t *testing.T) {
	names := runtimetest.Cases()
	assert.GreaterOrEqual(t, len(names), 80)
	seen := map[string]bool{}
	for _, n := range names {
		assert.False(t, seen[n], "two cases are called %q", n)
		seen[n] = true
	}
}
