package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net"
	"os"
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

// A proxy starts where a killed one has left its socket.
func TestRun_InjectsFaultsByRule(t *testing.T) {
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Close()) }()
	dir := t.TempDir()
	killed, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "bad"), Net: "unix"})
	require.NoError(t, err)
	killed.SetUnlinkOnClose(false)
	require.NoError(t, killed.Close(), "the socket stays, as after a kill")
	lis, err := net.Listen("unix", filepath.Join(dir, "good"))
	require.NoError(t, err)
	s := grpc.NewServer()
	rt.Register(s)
	go func() { _ = s.Serve(lis) }()
	defer s.Stop()

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"-listen", "unix://" + dir + "/bad", "-to", "unix://" + dir + "/good", "-rule", "fault=fail,rpc=Version,code=Internal"}, io.Discard)
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

// Errors say what to write.
func TestRun_NamesInvalidFlags(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	lis, err := net.Listen("unix", filepath.Join(dir, "served"))
	require.NoError(t, err)
	defer lis.Close()
	for want, args := range map[string][]string{
		`unknown fault "nope"; use delay, hang`:                    {"-rule", "fault=nope"},
		`fault required: delay, hang`:                              {"-rule", "rpc=Version"},
		`rpc "Versions": the CRI has no such call`:                 {"-rule", "fault=fail,rpc=Versions"},
		`fault=delay needs delay=`:                                 {"-rule", "fault=delay,rpc=Version"},
		`times: unknown name; use fault, rpc`:                      {"-rule", "fault=fail,times=2"},
		`-to: endpoint "/run/my.sock" must be unix:///path`:        {"-to", "/run/my.sock"},
		"-listen: endpoint":                                        {"-listen", "bad.sock"},
		"-listen and -to are the same socket":                      {"-listen", "unix:///a.sock", "-to", "unix:///a.sock"},
		"-listen: " + dir + "/served: another process serves":      {"-listen", "unix://" + dir + "/served"},
		"-listen: listen unix " + file + ": bind: address already": {"-listen", "unix://" + file},
		"flag provided but not defined: -rules; see -help":         {"-rules", "fault=fail"},
		`unexpected argument "fault=fail"; see -help`:              {"fault=fail"},
	} {
		var out bytes.Buffer
		require.ErrorContains(t, run(t.Context(), args, &out), want)
		assert.Empty(t, out.String(), "main prints the error, once")
	}
	require.FileExists(t, file)
	var out bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"-help"}, &out), flag.ErrHelp)
	assert.Contains(t, out.String(), "-listen")
}
