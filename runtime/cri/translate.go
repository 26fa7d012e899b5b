package cri

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// translator turns one pod into messages of the CRI. It does no I/O but for what
// an environment refers to: what else has to be looked up comes in by arguments.
type translator struct {
	node     Node
	features *features // nil: not reported yet
	pod      *corev1.Pod
	m        runtime.RunOptions
	owner    string
}

// sandbox translates what the containers of a pod share.
func (tr *translator) sandbox(attempt uint32) (*v1.PodSandboxConfig, error) {
	pod := tr.pod
	security, err := tr.sandboxSecurity()
	if err != nil {
		return nil, err
	}
	cfg := &v1.PodSandboxConfig{
		Metadata:     &v1.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		LogDirectory: tr.m.LogDir,
		Labels:       sandboxLabels(pod, tr.owner), Annotations: sandboxAnnotations(pod),
		Linux: &v1.LinuxPodSandboxConfig{
			CgroupParent: tr.m.CgroupParent, SecurityContext: security, Sysctls: sysctls(pod),
			Overhead: tr.overhead(), Resources: tr.podResources(),
		},
	}
	if d := tr.m.DNS; len(d.Servers)+len(d.Searches)+len(d.Options) > 0 {
		cfg.DnsConfig = &v1.DNSConfig{Servers: d.Servers, Searches: d.Searches, Options: d.Options}
	}
	if !podspec.IsHostNetwork(pod) {
		// A sandbox on the node's network has the node's name; runtimes refuse
		// any other.
		cfg.Hostname = tr.m.Hostname
		cfg.PortMappings = portMappings(pod)
	}
	return cfg, nil
}

// portMappings are the ports of everything that runs beside each other.
func portMappings(pod *corev1.Pod) []*v1.PortMapping {
	var out []*v1.PortMapping
	add := func(ct *corev1.Container) {
		for _, p := range ct.Ports {
			out = append(out, &v1.PortMapping{
				Protocol: protocolOf(p.Protocol), ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
			})
		}
	}
	for i := range pod.Spec.InitContainers {
		if podspec.IsSidecar(&pod.Spec.InitContainers[i]) {
			add(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

func protocolOf(p corev1.Protocol) v1.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return v1.Protocol_UDP
	case corev1.ProtocolSCTP:
		return v1.Protocol_SCTP
	default:
		return v1.Protocol_TCP
	}
}

// containerInput is what a container is made of besides its pod.
type containerInput struct {
	spec     *corev1.Container
	action   runtime.Action
	attempt  uint32
	image    *v1.Image
	env      []envVar    // resolved, in order
	mounts   []*v1.Mount // resolved
	targetID string      // ephemeral containers: whose processes to see
}

// container translates one container.
func (tr *translator) container(in containerInput) (*v1.ContainerConfig, error) {
	spec := in.spec
	security, err := tr.containerSecurity(spec, in.image, in.targetID)
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
		Metadata: &v1.ContainerMetadata{Name: spec.Name, Attempt: in.attempt},
		Image: &v1.ImageSpec{
			Image: in.image.GetId(), UserSpecifiedImage: spec.Image, RuntimeHandler: runtimeHandler(tr.pod),
		},
		Command: expandAll(spec.Command, in.env), Args: expandAll(spec.Args, in.env), WorkingDir: spec.WorkingDir,
		Labels: containerLabels(tr.pod, spec.Name, tr.owner), Annotations: containerAnnotations(tr.pod, spec, in.action, in.attempt),
		LogPath: logPath(spec.Name, in.attempt), Mounts: in.mounts, Devices: devices,
		Stdin: spec.Stdin, StdinOnce: spec.StdinOnce, Tty: spec.TTY, StopSignal: signal,
		Linux: &v1.LinuxContainerConfig{Resources: tr.resources(spec), SecurityContext: security},
	}
	for _, e := range in.env {
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
func (tr *translator) devices(spec *corev1.Container) ([]*v1.Device, error) {
	var out []*v1.Device
	for _, d := range spec.VolumeDevices {
		v, ok := tr.m.Volumes[d.Name]
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
