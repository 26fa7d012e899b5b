package csitest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stagedName marks a staging directory of an ordinary user, who cannot mount.
const stagedName = ".staged"

// SecretKey is a key of a Secret whose value volumes with the attribute "secret" expect.
const SecretKey = "key"

// NodeGetInfo implements the node service.
func (d *Driver) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	segments := d.Topology
	if segments == nil {
		segments = map[string]string{TopologyKey: d.nodeID()}
	}
	return &spec.NodeGetInfoResponse{
		NodeId: d.nodeID(), MaxVolumesPerNode: MaxVolumes, AccessibleTopology: &spec.Topology{Segments: segments},
	}, nil
}

// NodeGetCapabilities implements the node service.
func (d *Driver) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	resp := &spec.NodeGetCapabilitiesResponse{}
	for _, c := range []struct {
		has  bool
		kind spec.NodeServiceCapability_RPC_Type
	}{
		{!d.NoStage, spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
		{true, spec.NodeServiceCapability_RPC_GET_VOLUME_STATS},
		{d.Health != nil, spec.NodeServiceCapability_RPC_GET_VOLUME_HEALTH},
		{!d.NoExpand, spec.NodeServiceCapability_RPC_EXPAND_VOLUME},
		{d.Group, spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP},
		{d.Writers, spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER},
	} {
		if c.has {
			resp.Capabilities = append(resp.Capabilities, &spec.NodeServiceCapability{
				Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: c.kind}},
			})
		}
	}
	return resp, nil
}

// NodeStageVolume implements the node service.
func (d *Driver) NodeStageVolume(_ context.Context, r *spec.NodeStageVolumeRequest) (*spec.NodeStageVolumeResponse, error) {
	switch {
	case r.GetVolumeId() == "", r.GetStagingTargetPath() == "", r.GetVolumeCapability() == nil:
		return nil, status.Error(codes.InvalidArgument, "volume id, staging path and capability: required")
	case r.GetVolumeContext()["secret"] != r.GetSecrets()[SecretKey]:
		return nil, status.Error(codes.Unauthenticated, "secret "+r.GetSecrets()[SecretKey]+" is wrong")
	}
	if err := d.exists(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if r.GetVolumeCapability().GetBlock() != nil {
		return &spec.NodeStageVolumeResponse{}, nil // it is published from where it is
	}
	if os.Geteuid() != 0 {
		return &spec.NodeStageVolumeResponse{}, internal(os.WriteFile(filepath.Join(r.GetStagingTargetPath(), stagedName), nil, 0o600))
	}
	return &spec.NodeStageVolumeResponse{}, internal(bind(d.data(r.GetVolumeId()), r.GetStagingTargetPath(), false))
}

// setPublished notes where a volume is published.
func (d *Driver) setPublished(id, target string, published bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !published {
		delete(d.published[id], target)
		return
	}
	if d.published == nil {
		d.published = map[string]map[string]bool{}
	}
	if d.published[id] == nil {
		d.published[id] = map[string]bool{}
	}
	d.published[id][target] = true
}

// publishedAt is how often a volume is published.
func (d *Driver) publishedAt(id string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.published[id])
}

// NodeUnstageVolume implements the node service. A volume that is still published for a pod
// stays, as with drivers whose volumes are no mounts of the kernel.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *spec.NodeUnstageVolumeRequest) (*spec.NodeUnstageVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume id and staging path: required")
	}
	if n := d.publishedAt(r.GetVolumeId()); n > 0 {
		return nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("volume %s is published at %d paths", r.GetVolumeId(), n))
	}
	_ = os.Remove(filepath.Join(r.GetStagingTargetPath(), stagedName)) // of an ordinary user
	return &spec.NodeUnstageVolumeResponse{}, internal(unbind(r.GetStagingTargetPath()))
}

// NodePublishVolume implements the node service. A volume of the lifecycle Ephemeral is made.
func (d *Driver) NodePublishVolume(_ context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	switch {
	case r.GetVolumeId() == "", r.GetTargetPath() == "", r.GetVolumeCapability() == nil:
		return nil, status.Error(codes.InvalidArgument, "volume id, target path and capability: required")
	}
	if r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true" {
		if err := d.CreateVolumeDir(r.GetVolumeId()); err != nil {
			return nil, internal(err)
		}
		if err := os.WriteFile(filepath.Join(d.VolumeDir(r.GetVolumeId()), "ephemeral"), nil, 0o600); err != nil {
			return nil, internal(err)
		}
	}
	if err := d.exists(r.GetVolumeId()); err != nil {
		return nil, err
	}
	d.setPublished(r.GetVolumeId(), r.GetTargetPath(), true)
	source := d.data(r.GetVolumeId())
	switch {
	case r.GetVolumeCapability().GetBlock() != nil:
		device, err := loopDevice(filepath.Join(d.VolumeDir(r.GetVolumeId()), "device"))
		if err != nil {
			return nil, internal(err)
		}
		_ = os.Remove(r.GetTargetPath()) // of an earlier call
		return &spec.NodePublishVolumeResponse{}, internal(os.Symlink(device, r.GetTargetPath()))
	case os.Geteuid() != 0:
		if _, err := os.Readlink(r.GetTargetPath()); err == nil {
			return &spec.NodePublishVolumeResponse{}, nil
		}
		return &spec.NodePublishVolumeResponse{}, internal(os.Symlink(source, r.GetTargetPath()))
	case !d.NoStage && r.GetStagingTargetPath() != "":
		source = r.GetStagingTargetPath()
	}
	if err := os.MkdirAll(r.GetTargetPath(), 0o750); err != nil {
		return nil, internal(err)
	}
	return &spec.NodePublishVolumeResponse{}, internal(bind(source, r.GetTargetPath(), r.GetReadonly()))
}

// NodeUnpublishVolume implements the node service.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume id and target path: required")
	}
	d.setPublished(r.GetVolumeId(), r.GetTargetPath(), false)
	if err := d.exists(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := unbind(r.GetTargetPath()); err != nil {
		return nil, internal(err)
	}
	if err := os.Remove(r.GetTargetPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, internal(err)
	}
	if device, err := os.ReadFile(filepath.Join(d.VolumeDir(r.GetVolumeId()), "device.loop")); err == nil {
		if err := detachLoop(string(device)); err != nil {
			return nil, internal(err)
		}
		_ = os.Remove(filepath.Join(d.VolumeDir(r.GetVolumeId()), "device.loop"))
	}
	if _, err := os.Stat(filepath.Join(d.VolumeDir(r.GetVolumeId()), "ephemeral")); err == nil {
		return &spec.NodeUnpublishVolumeResponse{}, internal(os.RemoveAll(d.VolumeDir(r.GetVolumeId())))
	}
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats implements the node service.
func (d *Driver) NodeGetVolumeStats(_ context.Context, r *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	if err := d.mounted(r.GetVolumeId(), r.GetVolumePath()); err != nil {
		return nil, err
	}
	return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{
		{Unit: spec.VolumeUsage_BYTES, Total: d.size(r.GetVolumeId()), Used: 10, Available: d.size(r.GetVolumeId()) - 10},
		{Unit: spec.VolumeUsage_INODES, Total: 100, Used: 1, Available: 99},
	}}, nil
}

// mounted checks the volume and the path of a request.
func (d *Driver) mounted(id, path string) error {
	if path == "" {
		return status.Error(codes.InvalidArgument, "volume path: required")
	}
	if err := d.exists(id); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err != nil {
		return status.Error(codes.NotFound, "volume is not mounted there")
	}
	return nil
}

// NodeGetVolumeHealth implements the node service.
func (d *Driver) NodeGetVolumeHealth(_ context.Context, r *spec.NodeGetVolumeHealthRequest) (*spec.NodeGetVolumeHealthResponse, error) {
	if err := d.exists(r.GetVolumeId()); err != nil {
		return nil, err
	}
	health := &spec.VolumeHealth{VolumeId: r.GetVolumeId()}
	if d.Health != nil {
		health.HealthStatuses = d.Health(r.GetVolumeId())
	}
	return &spec.NodeGetVolumeHealthResponse{VolumeHealth: health}, nil
}

// NodeExpandVolume implements the node service.
func (d *Driver) NodeExpandVolume(_ context.Context, r *spec.NodeExpandVolumeRequest) (*spec.NodeExpandVolumeResponse, error) {
	if err := d.mounted(r.GetVolumeId(), r.GetVolumePath()); err != nil {
		return nil, err
	}
	size := r.GetCapacityRange().GetRequiredBytes()
	if size <= d.size(r.GetVolumeId()) {
		return &spec.NodeExpandVolumeResponse{CapacityBytes: d.size(r.GetVolumeId())}, nil
	}
	return &spec.NodeExpandVolumeResponse{CapacityBytes: size}, internal(d.setSize(r.GetVolumeId(), size))
}

func (d *Driver) data(id string) string { return filepath.Join(d.VolumeDir(id), "data") }

// size is the size that a volume was made or expanded with.
func (d *Driver) size(id string) int64 {
	text, err := os.ReadFile(filepath.Join(d.VolumeDir(id), "size"))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Size is the size of a volume as the driver knows it.
func (d *Driver) Size(id string) int64 { return d.size(id) }

func (d *Driver) setSize(id string, size int64) error {
	return os.WriteFile(filepath.Join(d.VolumeDir(id), "size"), []byte(strconv.FormatInt(size, 10)), 0o600)
}

func internal(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.Internal, err.Error())
}

// bind mounts source on target, unless that is done.
func bind(source, target string, readOnly bool) error {
	var a, b unix.Stat_t
	if err := errors.Join(unix.Stat(source, &a), unix.Stat(target, &b)); err != nil {
		return err
	}
	if a.Dev == b.Dev && a.Ino == b.Ino {
		return nil
	}
	return mountBind(source, target, readOnly)
}
