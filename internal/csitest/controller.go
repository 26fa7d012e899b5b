package csitest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ControllerGetCapabilities implements the controller service.
func (*Driver) ControllerGetCapabilities(context.Context, *spec.ControllerGetCapabilitiesRequest) (*spec.ControllerGetCapabilitiesResponse, error) {
	resp := &spec.ControllerGetCapabilitiesResponse{}
	for _, kind := range []spec.ControllerServiceCapability_RPC_Type{
		spec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, spec.ControllerServiceCapability_RPC_LIST_VOLUMES, spec.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	} {
		resp.Capabilities = append(resp.Capabilities, &spec.ControllerServiceCapability{
			Type: &spec.ControllerServiceCapability_Rpc{Rpc: &spec.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return resp, nil
}

// CreateVolume implements the controller service. The id of a volume is its name.
func (d *Driver) CreateVolume(_ context.Context, r *spec.CreateVolumeRequest) (*spec.CreateVolumeResponse, error) {
	size := max(r.GetCapacityRange().GetRequiredBytes(), 1<<20)
	switch {
	case r.GetName() == "", len(r.GetVolumeCapabilities()) == 0:
		return nil, status.Error(codes.InvalidArgument, "name and capabilities: required")
	case size > maxVolumeSize:
		return nil, status.Error(codes.OutOfRange, "volume is too large")
	case d.exists(r.GetName()) == nil && d.size(r.GetName()) != size:
		return nil, status.Error(codes.AlreadyExists, "volume exists with another size")
	}
	if err := d.CreateVolumeDir(r.GetName()); err != nil {
		return nil, internal(err)
	}
	if err := d.setSize(r.GetName(), size); err != nil {
		return nil, internal(err)
	}
	return &spec.CreateVolumeResponse{Volume: &spec.Volume{
		VolumeId: r.GetName(), CapacityBytes: size, VolumeContext: r.GetParameters(),
		AccessibleTopology: []*spec.Topology{{Segments: map[string]string{TopologyKey: d.nodeID()}}},
	}}, nil
}

// DeleteVolume implements the controller service.
func (d *Driver) DeleteVolume(_ context.Context, r *spec.DeleteVolumeRequest) (*spec.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume id: required")
	}
	return &spec.DeleteVolumeResponse{}, internal(os.RemoveAll(d.VolumeDir(r.GetVolumeId())))
}

// ControllerPublishVolume implements the controller service.
func (d *Driver) ControllerPublishVolume(_ context.Context, r *spec.ControllerPublishVolumeRequest) (*spec.ControllerPublishVolumeResponse, error) {
	switch {
	case r.GetVolumeId() == "", r.GetNodeId() == "", r.GetVolumeCapability() == nil:
		return nil, status.Error(codes.InvalidArgument, "volume id, node id and capability: required")
	case r.GetNodeId() != d.nodeID():
		return nil, status.Error(codes.NotFound, "no such node")
	}
	if err := d.exists(r.GetVolumeId()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.attached) >= MaxVolumes && !d.attached[r.GetVolumeId()] {
		return nil, status.Error(codes.ResourceExhausted, "too many volumes are attached to the node")
	}
	if d.attached == nil {
		d.attached = map[string]bool{}
	}
	d.attached[r.GetVolumeId()] = true
	return &spec.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attached": r.GetNodeId()}}, nil
}

// ControllerUnpublishVolume implements the controller service.
func (d *Driver) ControllerUnpublishVolume(_ context.Context, r *spec.ControllerUnpublishVolumeRequest) (*spec.ControllerUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume id: required")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.attached, r.GetVolumeId())
	return &spec.ControllerUnpublishVolumeResponse{}, nil
}

// ValidateVolumeCapabilities implements the controller service.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, r *spec.ValidateVolumeCapabilitiesRequest) (*spec.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume id and capabilities: required")
	}
	if err := d.exists(r.GetVolumeId()); err != nil {
		return nil, err
	}
	return &spec.ValidateVolumeCapabilitiesResponse{Confirmed: &spec.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// ListVolumes implements the controller service.
func (d *Driver) ListVolumes(_ context.Context, r *spec.ListVolumesRequest) (*spec.ListVolumesResponse, error) {
	dirs, err := os.ReadDir(filepath.Join(d.Dir, "volumes"))
	if err != nil {
		return nil, internal(err)
	}
	var ids []string
	for _, dir := range dirs {
		if id, err := os.ReadFile(filepath.Join(d.Dir, "volumes", dir.Name(), "id")); err == nil {
			ids = append(ids, string(id))
		}
	}
	slices.Sort(ids)
	start := 0
	if token := r.GetStartingToken(); token != "" {
		if start, err = strconv.Atoi(token); err != nil || start < 0 || start > len(ids) {
			return nil, status.Error(codes.Aborted, "invalid starting token")
		}
	}
	resp, end := &spec.ListVolumesResponse{}, len(ids)
	if n := int(r.GetMaxEntries()); n > 0 && start+n < end {
		end = start + n
		resp.NextToken = strconv.Itoa(end)
	}
	for _, id := range ids[start:end] {
		resp.Entries = append(resp.Entries, &spec.ListVolumesResponse_Entry{Volume: &spec.Volume{VolumeId: id, CapacityBytes: d.size(id)}})
	}
	return resp, nil
}

// ControllerExpandVolume implements the controller service. The node does the work.
func (d *Driver) ControllerExpandVolume(_ context.Context, r *spec.ControllerExpandVolumeRequest) (*spec.ControllerExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "volume id and capacity range: required")
	}
	if err := d.exists(r.GetVolumeId()); err != nil {
		return nil, err
	}
	size := r.GetCapacityRange().GetRequiredBytes()
	if size > maxVolumeSize {
		return nil, status.Error(codes.OutOfRange, "volume is too large")
	}
	return &spec.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
}
