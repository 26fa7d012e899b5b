package dra_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	api "k8s.io/kubelet/pkg/apis/dra/v1"
)

// hostDriver is a driver that keeps which host it is called as.
type hostDriver struct {
	fakeDriver

	hosts chan []string
}

func (d *hostDriver) NodePrepareResources(ctx context.Context, r *api.NodePrepareResourcesRequest) (*api.NodePrepareResourcesResponse, error) {
	d.hosts <- metadata.ValueFromIncomingContext(ctx, ":authority")
	return d.fakeDriver.NodePrepareResources(ctx, r)
}

// A server that is not written in Go rejects a call to a host that cannot be one, such as a path.
func TestManager_CallsDriversAsLocalhost(t *testing.T) {
	d := &hostDriver{hosts: make(chan []string, 1)}
	p := serveAs(t, func(s *grpc.Server) { api.RegisterDRAPluginServer(s, d) })
	m := newManager(t, stateFile(t), fakeClaims{"one": claim("one", p.Name)})
	register(t, m, p)
	inject(t, m, pod("a", "one"), false)
	require.Equal(t, []string{"localhost"}, <-d.hosts)
}
