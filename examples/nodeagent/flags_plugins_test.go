package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/sublet-dev/agent/internal/csitest"
)

// draPlugin registers as a DRA driver.
type draPlugin struct {
	registration.UnimplementedRegistrationServer
	answers chan *registration.RegistrationStatus
}

// GetInfo implements registration.RegistrationServer.
func (p *draPlugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.DRAPlugin, Name: "dra.example", Endpoint: "/dra.sock", SupportedVersions: []string{draapi.DRAPluginService}}, nil
}

// NotifyRegistrationStatus implements registration.RegistrationServer.
func (p *draPlugin) NotifyRegistrationStatus(_ context.Context, st *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	select {
	case p.answers <- st:
	default: // the first one counts
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func TestParse_PluginRegistryDir(t *testing.T) {
	_, err := parse([]string{"-manifests", "/m", "-plugin-registry-dir", "d"}, &bytes.Buffer{})
	require.ErrorContains(t, err, `-plugin-registry-dir "d": must be an absolute path`)
	require.ErrorContains(t, err, "-plugin-registry-dir needs -csi or -device-plugin-dir")
	for _, user := range [][]string{{"-csi"}, {"-device-plugin-dir", "/p"}} {
		f, err := parse(append([]string{"-manifests", "/m", "-plugin-registry-dir", "/d"}, user...), &bytes.Buffer{})
		require.NoError(t, err, user)
		require.Equal(t, "/d", f.registryDir())
	}
	f, err := parse([]string{"-manifests", "/m", "-root-dir", "/r", "-csi"}, &bytes.Buffer{})
	require.NoError(t, err)
	require.Equal(t, "/r/plugins_registry", f.registryDir())
}

// CSI and DRA drivers register in one directory, as with a kubelet, and neither is rejected
// because of the other.
func TestRun_DriversShareADirectory(t *testing.T) {
	dir, err := os.MkdirTemp("", "na") //nolint:usetesting // a short path for the sockets
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	manifests, root := filepath.Join(dir, "m"), filepath.Join(dir, "r")
	registry := filepath.Join(root, "plugins_registry")
	require.NoError(t, os.MkdirAll(registry, 0o700))
	require.NoError(t, os.Mkdir(manifests, 0o700))

	listener, err := net.Listen("unix", filepath.Join(registry, "dra.sock"))
	require.NoError(t, err)
	dra, server := &draPlugin{answers: make(chan *registration.RegistrationStatus, 1)}, grpc.NewServer()
	registration.RegisterRegistrationServer(server, dra)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer func() { server.Stop(); serving.Wait() }()
	csi := &csitest.Driver{Dir: filepath.Join(dir, "driver")}
	stop, err := csi.Serve(filepath.Join(dir, "csi.sock"), filepath.Join(registry, "csi.sock"))
	require.NoError(t, err)
	defer stop(false)

	f, err := parse([]string{
		"-root-dir", root, "-pod-logs-dir", filepath.Join(dir, "l"), "-manifests", manifests, "-listen=", "-hostname-override", "n",
		"-csi", "-dra-plugin-dir", registry + "/",
	}, &bytes.Buffer{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, f, &bytes.Buffer{}) }()
	defer func() { cancel(); require.NoError(t, <-done) }()
	select {
	case st := <-dra.answers:
		require.True(t, st.GetPluginRegistered(), st.GetError())
	case <-time.After(time.Minute):
		t.Fatal("the DRA driver is not registered")
	}
	var answers []csitest.Call
	require.Eventually(t, func() bool {
		answers = csi.Calls("NotifyRegistrationStatus")
		return len(answers) > 0
	}, time.Minute, 10*time.Millisecond)
	st, ok := answers[0].Request.(*registration.RegistrationStatus)
	require.True(t, ok)
	require.True(t, st.GetPluginRegistered(), st.GetError())
}
