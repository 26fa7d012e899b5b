package translate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// ContainerInput is what a container is made of besides its pod.
type ContainerInput struct {
	Spec     *corev1.Container
	Action   runtime.Action
	Attempt  uint32
	Image    *v1.Image
	Env      []EnvVar    // resolved, in order
	Mounts   []*v1.Mount // resolved
	TargetID string      // ephemeral containers: whose processes to see

	Injection runtime.Injection // devices, annotations and CDI names; Env and Mounts contain its own
}

// Container translates one container.
func (tr *Translator) Container(in ContainerInput) (*v1.ContainerConfig, error) {
	spec := in.Spec
	security, err := tr.containerSecurity(spec, in.Image, in.TargetID)
	if err != nil {
		return nil, err
	}
	signal, err := stopSignal(spec)
	if err != nil {
		return nil, err
	}
	devices, err := tr.devices(spec)
	if err != nil {
		return nil, err
	}
	cfg := &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: spec.Name, Attempt: in.Attempt},
		Image: &v1.ImageSpec{
			Image: in.Image.GetId(), UserSpecifiedImage: spec.Image, RuntimeHandler: RuntimeHandler(tr.Pod),
		},
		Command: expandAll(spec.Command, in.Env), Args: expandAll(spec.Args, in.Env), WorkingDir: spec.WorkingDir,
		Labels: containerLabels(tr.Pod, spec.Name, tr.Owner), Annotations: containerAnnotations(tr.Pod, in, tr.Node.BootID),
		LogPath: logPath(spec.Name, in.Attempt), Mounts: in.Mounts, Devices: append(devices, injectedDevices(in.Injection)...), CDIDevices: cdiDevices(in.Injection),
		Stdin: spec.Stdin, StdinOnce: spec.StdinOnce, Tty: spec.TTY, StopSignal: signal,
		Linux: &v1.LinuxContainerConfig{Resources: tr.Resources(spec), SecurityContext: security},
	}
	cfg.Linux.Resources.CpusetCpus, cfg.Linux.Resources.CpusetMems = in.Injection.Cpuset.CPUs, in.Injection.Cpuset.MemoryNodes
	if err := injectUnified(cfg.Linux.Resources, in.Injection); err != nil {
		return nil, err
	}
	for _, e := range in.Env {
		cfg.Envs = append(cfg.Envs, &v1.KeyValue{Key: e.name, Value: []byte(e.value)})
	}
	return cfg, nil
}

// stopSignal is the signal the spec wants instead of the image's.
func stopSignal(spec *corev1.Container) (v1.Signal, error) {
	if spec.Lifecycle == nil || spec.Lifecycle.StopSignal == nil {
		return v1.Signal_SIGNAL_RUNTIME_DEFAULT, nil
	}
	name := string(*spec.Lifecycle.StopSignal)
	value, ok := v1.Signal_value["SIGNAL_"+flattenSignal(name)]
	if !ok {
		return 0, fmt.Errorf("invalid stopSignal %q: %w", name, runtime.ErrInvalid)
	}
	return v1.Signal(value), nil
}

// devices are the pod's block volumes that the container wants as devices.
func (tr *Translator) devices(spec *corev1.Container) ([]*v1.Device, error) {
	var out []*v1.Device
	for _, d := range spec.VolumeDevices {
		v, ok := tr.Options.Volumes[d.Name]
		if !ok || v.HostPath == "" {
			return nil, fmt.Errorf("volumeDevice %q: no such volume is mounted: %w", d.Name, runtime.ErrInvalid)
		}
		permissions := "mrw"
		if v.ReadOnly {
			permissions = "r"
		}
		out = append(out, &v1.Device{ContainerPath: d.DevicePath, HostPath: v.HostPath, Permissions: permissions})
	}
	return out, nil
}
