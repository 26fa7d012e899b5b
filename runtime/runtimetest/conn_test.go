package runtimetest

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A connection with the defaults of gRPC takes the lists of a full node, as kubelets do.
func TestRun_TakesLargeLists(t *testing.T) {
	large := Rule{Fault: Corrupt, RPC: "ListPodSandbox", Mutate: onResponse(func(r *v1.ListPodSandboxResponse) {
		r.Items = append(r.Items, &v1.PodSandbox{Id: "another", Annotations: map[string]string{"blob": strings.Repeat("x", 5<<20)}})
	})}
	p, err := NewProxy(simulatedConn(t), 1, large)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	socket := filepath.Join(t.TempDir(), "cri.sock")
	lis, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		<-served
	})
	cc, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	r, err := Run(t.Context(), cc, only("a new attempt coexists"))
	require.NoError(t, err)
	require.Len(t, r.Cases, 1)
	assert.Equal(t, Passed, r.Cases[0].Result, r.Cases[0].String())
}

// A call that hangs is a failure that says so, with the time.
func TestRun_SaysHowLongACallHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := simulatedConn(t, Rule{Fault: Hang, RPC: "StopContainer"})
		r, err := Run(t.Context(), hung, only("stopping a container that is not there"), WithoutProcesses())
		require.NoError(t, err)
		require.Len(t, r.Cases, 1)
		assert.Contains(t, r.Cases[0].String(), "StopContainer: no response within 4m0s")
	})
}

// A runtime that accepts connections and does not respond is an error, and not waited for without a limit.
func TestRun_EndsWhereTheRuntimeDoesNotRespond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := Run(t.Context(), simulatedConn(t, Rule{Fault: Hang}), only("stopping a container that is not there"))
		require.ErrorContains(t, err, "get the version of the runtime: rpc error: code = DeadlineExceeded desc = Version: no response within 1m0s")
	})
}
