package main

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

func TestRun_InjectsFaultsByRule(t *testing.T) {
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Close()) }()
	dir := t.TempDir()
	lis, err := net.Listen("unix", filepath.Join(dir, "good"))
	require.NoError(t, err)
	s := grpc.NewServer()
	rt.Register(s)
	go func() { _ = s.Serve(lis) }()
	defer s.Stop()

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"-listen", "unix://" + dir + "/bad", "-to", "unix://" + dir + "/good", "-rule", "fault=fail,rpc=Version,code=Internal"})
	}()
	cc, err := grpc.NewClient("unix://"+dir+"/bad", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	defer func() { _ = cc.Close() }()
	rs := v1.NewRuntimeServiceClient(cc)
	_, err = rs.Version(ctx, &v1.VersionRequest{})
	assert.Equal(t, codes.Internal, status.Code(err))
	_, err = rs.Status(ctx, &v1.StatusRequest{})
	assert.NoError(t, err)
	cancel()
	assert.NoError(t, <-done)
}

func TestRun_NamesInvalidRules(t *testing.T) {
	assert.ErrorContains(t, run(t.Context(), []string{"-rule", "fault=nope"}), `unknown fault "nope"; use delay, hang`)
}

func TestRun_NamesInvalidAddresses(t *testing.T) {
	assert.ErrorContains(t, run(t.Context(), []string{"-to", "/run/my.sock"}), `-to: endpoint "/run/my.sock" must be unix:///path`)
	assert.ErrorContains(t, run(t.Context(), []string{"-listen", "bad.sock"}), "-listen: endpoint")
}
