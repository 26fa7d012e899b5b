package cri

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

func (f *fake) CreateContainer(ctx context.Context, r *v1.CreateContainerRequest) (*v1.CreateContainerResponse, error) {
	if err := f.work(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m := r.GetConfig().GetMetadata()
	for id, s := range f.containers {
		if f.inSandbox[id] == r.PodSandboxId && s.Metadata.Name == m.Name && s.Metadata.Attempt == m.Attempt {
			return nil, status.Errorf(codes.Unknown, "failed to reserve container name %q: name is reserved for %q", m.Name, id)
		}
	}
	id := f.id("ct")
	f.configs[id] = r.GetConfig()
	f.inSandbox[id] = r.PodSandboxId
	f.containers[id] = &v1.ContainerStatus{
		Id: id, Metadata: m, CreatedAt: time.Now().UnixNano(), Image: r.GetConfig().GetImage(), ImageRef: r.GetConfig().GetImage().GetImage(),
		Labels: r.GetConfig().GetLabels(), Annotations: r.GetConfig().GetAnnotations(), Mounts: r.GetConfig().GetMounts(),
		LogPath: f.sbConfigs[r.PodSandboxId].GetLogDirectory() + "/" + r.GetConfig().GetLogPath(),
	}
	return &v1.CreateContainerResponse{ContainerId: id}, nil
}

func (f *fake) StartContainer(ctx context.Context, r *v1.StartContainerRequest) (*v1.StartContainerResponse, error) {
	if err := f.work(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.containers[r.ContainerId]
	if s == nil {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	s.State, s.StartedAt = v1.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	return &v1.StartContainerResponse{}, nil
}

// exit ends a container. f.mu is held.
func (f *fake) exit(id string, code int32) {
	if s := f.containers[id]; s != nil && s.State != v1.ContainerState_CONTAINER_EXITED {
		s.State, s.FinishedAt, s.ExitCode = v1.ContainerState_CONTAINER_EXITED, time.Now().UnixNano(), code
	}
}

func (f *fake) StopContainer(_ context.Context, r *v1.StopContainerRequest) (*v1.StopContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stops[r.ContainerId] = r.Timeout
	f.exit(r.ContainerId, 143)
	return &v1.StopContainerResponse{}, nil
}

func (f *fake) RemoveContainer(_ context.Context, r *v1.RemoveContainerRequest) (*v1.RemoveContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.containers, r.ContainerId)
	delete(f.inSandbox, r.ContainerId)
	return &v1.RemoveContainerResponse{}, nil
}

func (f *fake) ContainerStatus(_ context.Context, r *v1.ContainerStatusRequest) (*v1.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.containers[r.ContainerId]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "container %s not found", r.ContainerId)
	}
	return &v1.ContainerStatusResponse{Status: s}, nil
}

func (f *fake) UpdateContainerResources(_ context.Context, r *v1.UpdateContainerResourcesRequest) (*v1.UpdateContainerResourcesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.updates = append(f.updates, r)
	if s := f.containers[r.ContainerId]; s != nil {
		s.Resources = &v1.ContainerResources{Linux: r.Linux}
	}
	return &v1.UpdateContainerResourcesResponse{}, nil
}

func (f *fake) ContainerStats(context.Context, *v1.ContainerStatsRequest) (*v1.ContainerStatsResponse, error) {
	if f.memory == nil {
		return nil, status.Error(codes.Unimplemented, "no stats")
	}
	return &v1.ContainerStatsResponse{Stats: &v1.ContainerStats{Memory: f.memory()}}, nil
}

func (f *fake) ExecSync(_ context.Context, r *v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) {
	if f.execute == nil {
		return &v1.ExecSyncResponse{Stdout: []byte(strings.Join(r.Cmd, " "))}, nil
	}
	return f.execute(r)
}

func (f *fake) ImageStatus(_ context.Context, r *v1.ImageStatusRequest) (*v1.ImageStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	im := f.images[r.GetImage().GetImage()]
	for _, other := range f.images {
		if im == nil && other.Id == r.GetImage().GetImage() {
			im = other
		}
	}
	return &v1.ImageStatusResponse{Image: im}, nil
}

func (f *fake) PullImage(_ context.Context, r *v1.PullImageRequest) (*v1.PullImageResponse, error) {
	f.addImage(r.GetImage().GetImage())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pulls = append(f.pulls, r)
	return &v1.PullImageResponse{ImageRef: "sha256:" + r.GetImage().GetImage()}, nil
}

func (f *fake) ListImages(context.Context, *v1.ListImagesRequest) (*v1.ListImagesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &v1.ListImagesResponse{}
	for _, im := range f.images {
		out.Images = append(out.Images, im)
	}
	return out, nil
}

func (f *fake) RemoveImage(_ context.Context, r *v1.RemoveImageRequest) (*v1.RemoveImageResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.images[r.GetImage().GetImage()] == nil {
		return nil, status.Error(codes.NotFound, "no such image")
	}
	delete(f.images, r.GetImage().GetImage())
	return &v1.RemoveImageResponse{}, nil
}

func (f *fake) ImageFsInfo(context.Context, *v1.ImageFsInfoRequest) (*v1.ImageFsInfoResponse, error) {
	return &v1.ImageFsInfoResponse{ImageFilesystems: []*v1.FilesystemUsage{{
		Timestamp: 5, FsId: &v1.FilesystemIdentifier{Mountpoint: "/images"}, UsedBytes: &v1.UInt64Value{Value: 7}, InodesUsed: &v1.UInt64Value{Value: 3},
	}}}, nil
}

// fill puts a pod with one running container in the fake, without any call.
func (f *fake) fill(pod *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, ct := f.id("sb"), f.id("ct")
	tr := &translate.Translator{Pod: pod, Owner: DefaultOwner}
	sandbox, err := tr.Sandbox(0)
	container, err2 := tr.Container(translate.ContainerInput{Spec: &pod.Spec.Containers[0]})
	if err = errors.Join(err, err2); err != nil {
		panic(err)
	}
	f.sandboxes[sb] = &v1.PodSandboxStatus{
		Id: sb, Metadata: sandbox.GetMetadata(), Labels: sandbox.GetLabels(), Annotations: sandbox.GetAnnotations(),
	}
	f.containers[ct] = &v1.ContainerStatus{
		Id: ct, Metadata: container.GetMetadata(), State: v1.ContainerState_CONTAINER_RUNNING,
		Labels: container.GetLabels(), Annotations: container.GetAnnotations(), StartedAt: 1,
	}
	f.inSandbox[ct] = sb
}
