package translate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
)

// Sandbox translates what the containers of a pod share.
func (tr *Translator) Sandbox(attempt uint32) (*v1.PodSandboxConfig, error) {
	pod := tr.Pod
	security, err := tr.sandboxSecurity()
	if err != nil {
		return nil, err
	}
	cfg := &v1.PodSandboxConfig{
		Metadata:     &v1.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		LogDirectory: tr.Options.LogDir,
		Labels:       sandboxLabels(pod, tr.Owner), Annotations: sandboxAnnotations(pod),
		Linux: &v1.LinuxPodSandboxConfig{
			CgroupParent: tr.Options.CgroupParent, SecurityContext: security, Sysctls: sysctls(pod),
			Overhead: tr.Overhead(), Resources: tr.podResources(),
		},
	}
	if d := tr.Options.DNS; len(d.Servers)+len(d.Searches)+len(d.Options) > 0 {
		cfg.DnsConfig = &v1.DNSConfig{Servers: d.Servers, Searches: d.Searches, Options: d.Options}
	}
	if !podspec.IsHostNetwork(pod) {
		// A sandbox on the node's network has the node's name; runtimes refuse
		// any other.
		cfg.Hostname = tr.Options.Hostname
		cfg.PortMappings = portMappings(pod)
	}
	return cfg, nil
}

// portMappings are the ports of everything that runs beside each other. Of a host port that a sidecar has in common
// with another container, the last one counts, so that those of regular containers are as with a kubelet.
func portMappings(pod *corev1.Pod) []*v1.PortMapping {
	var out []*v1.PortMapping
	add := func(ct *corev1.Container) {
		for _, p := range ct.Ports {
			out = slices.DeleteFunc(out, func(m *v1.PortMapping) bool {
				return p.HostPort > 0 && m.GetHostPort() == p.HostPort && m.GetHostIp() == p.HostIP && m.GetProtocol() == protocolOf(p.Protocol)
			})
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

// RuntimeHandler returns the handler that the pod's runtime class means. There
// are no RuntimeClass objects on a node: the class is the handler's name.
func RuntimeHandler(pod *corev1.Pod) string {
	if pod.Spec.RuntimeClassName == nil {
		return ""
	}
	return *pod.Spec.RuntimeClassName
}
