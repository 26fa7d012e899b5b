package deviceplugin_test

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// hostPlugin is a plugin that keeps which host it is called as.
type hostPlugin struct {
	*fakePlugin

	hosts chan []string
}

func (p hostPlugin) GetDevicePluginOptions(ctx context.Context, _ *api.Empty) (*api.DevicePluginOptions, error) {
	p.hosts <- metadata.ValueFromIncomingContext(ctx, ":authority")
	return p.options, nil
}

// A server that is not written in Go, as that of a plugin in Rust, rejects a call to a host that
// cannot be one, such as a path.
func TestServer_CallsPluginsAsLocalhost(t *testing.T) {
	dir, m := socketDir(t), newManager(t)
	start(t, dir, m)
	p := hostPlugin{newPlugin("a"), make(chan []string, 1)}
	listener, err := net.Listen("unix", filepath.Join(dir, "gpu.sock"))
	require.NoError(t, err)
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer func() {
		server.Stop()
		serving.Wait()
	}()
	require.NoError(t, register(t, dir, request("gpu.sock")))
	require.Equal(t, []string{"localhost"}, <-p.hosts)
	becomes(t, m, 1)
}
