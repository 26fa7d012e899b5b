package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/internal/text"
	"github.com/sublet-dev/agent/pluginregistry"
	"github.com/sublet-dev/agent/runtime"
)

// maxMessageBytes bounds a message of a plugin: a list of 10,000 devices has about one
// megabyte.
const maxMessageBytes = 4 << 20

// plugin is the client of a device plugin.
type plugin struct {
	path    string
	conn    *grpc.ClientConn
	client  api.DevicePluginClient
	options *api.DevicePluginOptions
}

// dial connects to the plugin at a socket, and waits until it serves.
func dial(ctx context.Context, path string, timeout time.Duration) (*plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := pluginregistry.Connect(path,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		pluginregistry.WithBackOff(time.Second, timeout),
	)
	if err != nil {
		return nil, fmt.Errorf("device plugin at %s: %w", path, err)
	}
	p := &plugin{path: path, conn: conn, client: api.NewDevicePluginClient(conn)}
	// The registration may have the options too, but says nothing about the socket: some plugins
	// register a moment before they serve, and do not notice if they are lost.
	if p.options, err = p.client.GetDevicePluginOptions(ctx, &api.Empty{}, grpc.WaitForReady(true)); err != nil {
		return nil, errors.Join(fmt.Errorf("device plugin at %s does not answer: %w", path, text.Error(err)), conn.Close())
	}
	return p, nil
}

// provider returns the plugin as the device manager gets it: a devices.PreStarter only if it
// prepares devices.
func (p *plugin) provider() devices.Plugin {
	if p.options.GetPreStartRequired() {
		return preStarter{p}
	}
	return p
}

// watch calls update with each list of devices. It returns when the plugin ends the stream
// or ctx is done.
func (p *plugin) watch(ctx context.Context, update func([]devices.Device) error) error {
	stream, err := p.client.ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		list := make([]devices.Device, 0, len(r.GetDevices()))
		for _, d := range r.GetDevices() {
			out := devices.Device{ID: d.GetID(), Healthy: d.GetHealth() == api.Healthy}
			for _, n := range d.GetTopology().GetNodes() {
				out.NUMANodes = append(out.NUMANodes, n.GetID())
			}
			list = append(list, out)
		}
		if err := update(list); err != nil {
			return err
		}
	}
}

// failed returns an error of a plugin, which names it.
func (p *plugin) failed(err error) error {
	return fmt.Errorf("device plugin at %s: %w", p.path, text.Error(err))
}

// Allocate implements devices.Plugin.
func (p *plugin) Allocate(ctx context.Context, ids []string) (runtime.Injection, error) {
	r, err := p.client.Allocate(ctx, &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return runtime.Injection{}, p.failed(err)
	}
	if n := len(r.GetContainerResponses()); n != 1 {
		return runtime.Injection{}, fmt.Errorf("device plugin at %s answered for %d containers, was asked for one", p.path, n)
	}
	injection, err := translate(r.GetContainerResponses()[0])
	if err != nil {
		return runtime.Injection{}, p.failed(fmt.Errorf("invalid answer: %w", err))
	}
	return injection, nil
}

// translate checks what a plugin wants to be injected.
func translate(r *api.ContainerAllocateResponse) (runtime.Injection, error) {
	var errs []error
	out := runtime.Injection{Env: r.GetEnvs(), Annotations: r.GetAnnotations()}
	for _, m := range r.GetMounts() {
		errs = append(errs, absolute("mount", m.GetHostPath(), m.GetContainerPath()))
		out.Mounts = append(out.Mounts, runtime.InjectedMount{HostPath: m.GetHostPath(), ContainerPath: m.GetContainerPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, d := range r.GetDevices() {
		errs = append(errs, absolute("device", d.GetHostPath(), d.GetContainerPath()))
		if strings.Trim(d.GetPermissions(), "rwm") != "" {
			errs = append(errs, fmt.Errorf("device %s: permissions %q must consist of r, w and m", d.GetHostPath(), d.GetPermissions()))
		}
		out.Devices = append(out.Devices, runtime.InjectedDevice{HostPath: d.GetHostPath(), ContainerPath: d.GetContainerPath(), Permissions: d.GetPermissions()})
	}
	for _, c := range r.GetCdiDevices() {
		// vendor.example/class=name, as the CDI specification says.
		kind, device, ok := strings.Cut(c.GetName(), "=")
		if vendor, class, slash := strings.Cut(kind, "/"); !ok || !slash || vendor == "" || class == "" || device == "" {
			errs = append(errs, fmt.Errorf("CDI device %q must have the form vendor.example/class=name", c.GetName()))
		}
		out.CDIDevices = append(out.CDIDevices, c.GetName())
	}
	for name := range out.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			errs = append(errs, fmt.Errorf("variable %q is not a valid name", name))
		}
	}
	return out, errors.Join(errs...)
}

func absolute(what string, paths ...string) error {
	var errs []error
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("%s: path %q must be absolute", what, path))
		}
	}
	return errors.Join(errs...)
}

// Choose implements devices.Chooser. It returns no preference if the plugin has none.
func (p *plugin) Choose(ctx context.Context, available, include []string, n int) ([]string, error) {
	if !p.options.GetGetPreferredAllocationAvailable() {
		return nil, nil
	}
	r, err := p.client.GetPreferredAllocation(ctx, &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: available, MustIncludeDeviceIDs: include, AllocationSize: int32(min(n, len(available))), //nolint:gosec // a count of devices
	}}})
	if err != nil {
		return nil, p.failed(err)
	}
	if len(r.GetContainerResponses()) != 1 {
		return nil, fmt.Errorf("device plugin at %s answered for %d containers, was asked for one", p.path, len(r.GetContainerResponses()))
	}
	return r.GetContainerResponses()[0].GetDeviceIDs(), nil
}

// preStarter is a plugin that prepares devices before each start of a container.
type preStarter struct{ *plugin }

// PreStart implements devices.PreStarter.
func (p preStarter) PreStart(ctx context.Context, ids []string) error {
	if _, err := p.client.PreStartContainer(ctx, &api.PreStartContainerRequest{DevicesIds: ids}); err != nil {
		return p.failed(err)
	}
	return nil
}
