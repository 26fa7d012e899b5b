// Package csitest has a CSI driver for tests. Its volumes are directories of the node, and
// files for block volumes. As root it mounts them; as an ordinary user it makes symbolic
// links instead. It can fail, hang, lie and die on request.
package csitest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Name is the name of the driver unless Driver.Name is set.
const Name = "csitest.example"

// TopologyKey is the label of nodes by which the driver says where it is.
const TopologyKey = "topology.csitest.example/node"

// MaxVolumes is the number of volumes that can be attached to a node.
const MaxVolumes = 64

// maxVolumeSize is the capacity of the driver.
const maxVolumeSize = 1 << 40

// Driver serves volumes. Set its fields before Serve.
type Driver struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedControllerServer
	spec.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	Name   string // default: Name
	Dir    string // of the volumes and what is known about them; required
	NodeID string // default: node
	// Topology is where the node is. Default: TopologyKey with the NodeID.
	Topology map[string]string
	// NoStage, NoExpand, Group and Writers are about the capabilities of the node: no
	// staging, no expansion, VOLUME_MOUNT_GROUP and SINGLE_NODE_MULTI_WRITER.
	NoStage, NoExpand, Group, Writers bool
	// Before is called before each method of the node service, with its request. An error
	// is the answer; errors.ErrUnsupported lies: the answer is a success, and nothing is
	// done. It may block. Default: none.
	Before func(ctx context.Context, method string, request any) error
	// After is called after each method of the node service that has succeeded. Its error is
	// the answer: that of the method is lost. Default: none.
	After func(ctx context.Context, method string, request any) error
	// Health is what NodeGetVolumeHealth answers.
	Health func(volume string) []*spec.VolumeHealth_VolumeHealthEntry

	endpoint string // of Serve
	mu       sync.Mutex
	calls    []Call
	attached map[string]bool
	// published are the target paths by volume.
	published map[string]map[string]bool
}

// Call is a call of the node service.
type Call struct {
	Method  string
	Request any
}

// Calls returns the calls of a method, or of all if it is "".
func (d *Driver) Calls(method string) (list []Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if method == "" || c.Method == method {
			list = append(list, c)
		}
	}
	return list
}

// Serve serves the driver on a socket, and its registration on another one if that is not
// "". stop ends it as a crash would: the sockets stay on disk if leave is set.
func (d *Driver) Serve(endpoint, registry string) (stop func(leave bool), err error) {
	if err := os.MkdirAll(filepath.Join(d.Dir, "volumes"), 0o755); err != nil {
		return nil, err
	}
	d.endpoint = endpoint
	var servers []*grpc.Server
	var listeners []*net.UnixListener
	var wg sync.WaitGroup
	stop = func(leave bool) {
		for _, l := range listeners {
			l.SetUnlinkOnClose(!leave)
		}
		for _, s := range servers {
			s.Stop()
		}
		wg.Wait()
	}
	for _, path := range []string{endpoint, registry} {
		if path == "" {
			continue
		}
		_ = os.Remove(path) // of a crash
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			stop(false)
			return nil, err
		}
		s := grpc.NewServer(grpc.UnaryInterceptor(d.intercept), grpc.WaitForHandlers(true))
		if path == endpoint {
			spec.RegisterIdentityServer(s, d)
			spec.RegisterControllerServer(s, d)
			spec.RegisterNodeServer(s, d)
		} else {
			registration.RegisterRegistrationServer(s, d)
		}
		servers, listeners = append(servers, s), append(listeners, l)
		wg.Go(func() { _ = s.Serve(l) }) // until stop
	}
	return stop, nil
}

// intercept records calls of the node service, and injects faults.
func (d *Driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	service, method := filepath.Base(filepath.Dir(info.FullMethod)), filepath.Base(info.FullMethod)
	if service != "csi.v1.Node" {
		return next(ctx, req)
	}
	d.mu.Lock()
	d.calls = append(d.calls, Call{method, req})
	before, after := d.Before, d.After
	d.mu.Unlock()
	if before != nil {
		switch err := before(ctx, method, req); {
		case errors.Is(err, errors.ErrUnsupported):
			return lie(method)
		case err != nil:
			return nil, err
		}
	}
	resp, err := next(ctx, req)
	if err == nil && after != nil {
		if err := after(ctx, method, req); err != nil {
			return nil, err
		}
	}
	return resp, err
}

// lie returns the answer of a method that has succeeded.
func lie(method string) (any, error) {
	switch method {
	case "NodeStageVolume":
		return &spec.NodeStageVolumeResponse{}, nil
	case "NodePublishVolume":
		return &spec.NodePublishVolumeResponse{}, nil
	case "NodeUnpublishVolume":
		return &spec.NodeUnpublishVolumeResponse{}, nil
	case "NodeUnstageVolume":
		return &spec.NodeUnstageVolumeResponse{}, nil
	case "NodeExpandVolume":
		return &spec.NodeExpandVolumeResponse{}, nil
	}
	return nil, status.Error(codes.Unimplemented, method)
}

func (d *Driver) name() string {
	if d.Name == "" {
		return Name
	}
	return d.Name
}

func (d *Driver) nodeID() string {
	if d.NodeID == "" {
		return "node"
	}
	return d.NodeID
}

// GetInfo implements the registration API.
func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: "CSIPlugin", Name: d.name(), Endpoint: d.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements the registration API.
func (d *Driver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, Call{"NotifyRegistrationStatus", s})
	return &registration.RegistrationStatusResponse{}, nil
}

// GetPluginInfo implements the identity service.
func (d *Driver) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: d.name(), VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements the identity service.
func (*Driver) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	return &spec.GetPluginCapabilitiesResponse{Capabilities: []*spec.PluginCapability{
		{Type: &spec.PluginCapability_Service_{Service: &spec.PluginCapability_Service{Type: spec.PluginCapability_Service_CONTROLLER_SERVICE}}},
		{Type: &spec.PluginCapability_Service_{Service: &spec.PluginCapability_Service{Type: spec.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS}}},
		{Type: &spec.PluginCapability_VolumeExpansion_{VolumeExpansion: &spec.PluginCapability_VolumeExpansion{Type: spec.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

// Probe implements the identity service.
func (*Driver) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{}, nil
}

// VolumeDir is the directory with the data of a volume, which exists if the volume does.
func (d *Driver) VolumeDir(id string) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(d.Dir, "volumes", hex.EncodeToString(sum[:8]))
}

// CreateVolumeDir makes a volume with an id of your own.
func (d *Driver) CreateVolumeDir(id string) error {
	if err := os.MkdirAll(filepath.Join(d.VolumeDir(id), "data"), 0o777); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.VolumeDir(id), "id"), []byte(id), 0o600)
}

func (d *Driver) exists(id string) error {
	switch _, err := os.Stat(d.VolumeDir(id)); {
	case id == "":
		return status.Error(codes.InvalidArgument, "volume id: required")
	case err != nil:
		return status.Error(codes.NotFound, fmt.Sprintf("volume %s not found", id))
	}
	return nil
}

// TakeCalls returns the calls since it was called last, and forgets them.
func (d *Driver) TakeCalls() []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.calls
	d.calls = nil
	return list
}

// SetAfter replaces After while the driver is served.
func (d *Driver) SetAfter(f func(ctx context.Context, method string, request any) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.After = f
}

// SetBefore replaces Before while the driver is served.
func (d *Driver) SetBefore(f func(ctx context.Context, method string, request any) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Before = f
}
