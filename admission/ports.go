package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// hostPort is a port of the node on any address.
type hostPort struct {
	protocol corev1.Protocol
	port     int32
}

// ports checks that no other pod uses one of the pod's host ports.
func (a *Admitter) ports(pod *corev1.Pod, others []*corev1.Pod) podspec.AdmitResult {
	requested := podspec.HostPorts(pod)
	if len(requested) == 0 {
		return podspec.Admitted()
	}
	addresses := make(map[hostPort][]string, len(requested))
	for _, p := range requested {
		addresses[portOf(p)] = append(addresses[portOf(p)], p.HostIP)
	}
	for _, other := range others {
		if !counts(other, pod) {
			continue
		}
		for _, p := range podspec.HostPorts(other) {
			for _, address := range addresses[portOf(p)] {
				if overlap(address, p.HostIP) {
					return failed(ReasonNodePorts, fmt.Sprintf("node(s) didn't have free ports for the requested pod ports: %s %d is used by pod %s",
						portOf(p).protocol, p.HostPort, podspec.FullName(other)))
				}
			}
		}
	}
	return podspec.Admitted()
}

func portOf(p corev1.ContainerPort) hostPort {
	if p.Protocol == "" {
		return hostPort{corev1.ProtocolTCP, p.HostPort}
	}
	return hostPort{p.Protocol, p.HostPort}
}

// overlap reports whether one socket cannot be bound to each of the addresses. The
// empty address stands for all addresses.
func overlap(a, b string) bool {
	all := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	return a == b || all(a) || all(b)
}
