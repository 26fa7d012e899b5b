package cri

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// sandboxConfig translates what the containers of a pod share.
func sandboxConfig(pod *corev1.Pod, m runtime.Materials, attempt uint32) (*v1.PodSandboxConfig, error) {
	network := v1.NamespaceMode_POD
	if podspec.IsHostNetwork(pod) {
		network = v1.NamespaceMode_NODE
	}
	return &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Hostname: m.Hostname, LogDirectory: m.LogDir,
		Labels: sandboxLabels(pod), Annotations: sandboxAnnotations(pod),
		Linux: &v1.LinuxPodSandboxConfig{
			CgroupParent: m.CgroupParent,
			SecurityContext: &v1.LinuxSandboxSecurityContext{
				NamespaceOptions: &v1.NamespaceOption{Network: network, Pid: v1.NamespaceMode_CONTAINER},
			},
		},
	}, nil
}

func (t *turn) containerConfig(_ context.Context, spec *corev1.Container, a runtime.Action, image *v1.Image) (*v1.ContainerConfig, error) {
	cfg := &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: spec.Name, Attempt: a.Attempt},
		Image:    &v1.ImageSpec{Image: image.GetId(), UserSpecifiedImage: spec.Image},
		Command:  spec.Command, Args: spec.Args, WorkingDir: spec.WorkingDir,
		Labels: containerLabels(t.pod, spec.Name), Annotations: containerAnnotations(t.pod, spec, a, a.Attempt),
		LogPath: logPath(spec.Name, a.Attempt),
		Linux: &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{
			NamespaceOptions: t.sandboxConfig.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
	for _, e := range spec.Env {
		cfg.Envs = append(cfg.Envs, &v1.KeyValue{Key: e.Name, Value: []byte(e.Value)})
	}
	for _, vm := range spec.VolumeMounts {
		v := t.m.Volumes[vm.Name]
		cfg.Mounts = append(cfg.Mounts, &v1.Mount{ContainerPath: vm.MountPath, HostPath: v.HostPath, Readonly: vm.ReadOnly || v.ReadOnly})
	}
	return cfg, nil
}
