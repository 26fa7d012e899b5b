package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/sublet-dev/agent/dra"
)

func TestParse_DeviceFlags(t *testing.T) {
	_, err := parse([]string{"-manifests", "/m", "-pod-resources-socket", "s"}, &bytes.Buffer{})
	require.ErrorContains(t, err, `-pod-resources-socket "s": must be an absolute path`)
	_, err = parse([]string{"-manifests", "/m", "-device-plugin-dir", "d"}, &bytes.Buffer{})
	require.ErrorContains(t, err, `-device-plugin-dir "d": must be an absolute path`)
}

// Device plugins can register, and monitors can ask for pods, while the agent runs. They get
// an answer also where there are no device plugins, as from a kubelet.
func TestRun_ServesDevices(t *testing.T) {
	for name, drivers := range map[string][]string{
		"device plugins": {"-device-plugin-dir", "plugins"}, "DRA drivers alone": {"-dra-plugin-dir", "dra"}, "neither": nil,
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "na") //nolint:usetesting // a short path for the sockets
			require.NoError(t, err)
			defer os.RemoveAll(dir)
			manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, annotations: {sim.sublet.dev/run-for: 1h}}\nspec: {containers: [{name: c, image: nginx:1}]}\n"
			require.NoError(t, os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(manifest), 0o600))
			socket := filepath.Join(dir, "pod-resources", "kubelet.sock")
			args := []string{
				"-root-dir", filepath.Join(dir, "r"), "-pod-logs-dir", filepath.Join(dir, "l"), "-manifests", dir, "-listen=", "-hostname-override", "n",
				"-pod-resources-socket", socket,
			}
			if drivers != nil {
				args = append(args, drivers[0], filepath.Join(dir, drivers[1]))
			}
			f, err := parse(args, &bytes.Buffer{})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- run(ctx, f, &bytes.Buffer{}) }()
			conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			require.Eventually(t, func() bool {
				list, err := v1.NewPodResourcesListerClient(conn).List(t.Context(), &v1.ListPodResourcesRequest{})
				return err == nil && len(list.GetPodResources()) == 1 && list.GetPodResources()[0].GetName() == "web-n"
			}, time.Minute, 50*time.Millisecond)
			_, err = os.Stat(filepath.Join(dir, "plugins", "kubelet.sock"))
			require.Equal(t, name == "device plugins", err == nil)
			cancel()
			require.NoError(t, <-done)
		})
	}
}

// The pod resources API has the devices of ResourceClaims if there are DRA drivers.
func TestDRAFlags_Claims(t *testing.T) {
	f, err := parse([]string{"-manifests", "/m", "-dra-plugin-dir", "/d/"}, &bytes.Buffer{})
	require.NoError(t, err)
	plugins := pluginDirs{}
	require.Nil(t, f.dra.claims(plugins))
	_, err = f.dra.options(&f, nil, plugins, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.IsType(t, &dra.Manager{}, f.dra.claims(plugins))
	f.dra.pluginDir = ""
	require.Nil(t, f.dra.claims(plugins))
}
