package kube

import (
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// taintUninitialized is that of a Node until the cloud controller manager has initialized it.
	taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	// annotationProvidedIP tells a cloud controller manager which of the addresses of the machine the operator wants.
	annotationProvidedIP = "alpha.kubernetes.io/provided-node-ip"
)

// registrationTaints returns the taints of a Node that is registered.
func (c *NodeConfig) registrationTaints() []corev1.Taint {
	taints := slices.Clone(c.Taints)
	if c.ExternalCloudProvider {
		taints = append(taints, corev1.Taint{Key: taintUninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule})
	}
	return taints
}

// addresses returns those that the Node is to have: with a cloud those that it has.
func (c *NodeConfig) addresses(current, detected []corev1.NodeAddress) []corev1.NodeAddress {
	switch {
	case c.ExternalCloudProvider && len(current) > 0:
		return current
	case c.ExternalCloudProvider && len(c.NodeIPs) == 0: // what the machine has may not be what the cloud finds
		return []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: c.Hostname}}
	case detected != nil:
		return detected
	}
	return current
}

// setProvidedIP sets the annotation for the cloud, or removes that of an agent with another configuration.
func (c *NodeConfig) setProvidedIP(meta *metav1.ObjectMeta) {
	switch provided := specificIPs(c.NodeIPs); {
	case c.ExternalCloudProvider && len(provided) > 0:
		metav1.SetMetaDataAnnotation(meta, annotationProvidedIP, strings.Join(provided, ","))
	case c.Annotations[annotationProvidedIP] == "":
		delete(meta.Annotations, annotationProvidedIP)
	}
}

// specificIPs returns the IPs that do more than choose a family.
func specificIPs(ips []string) (specific []string) {
	for _, text := range ips {
		if ip := net.ParseIP(text); ip != nil && !ip.IsUnspecified() {
			specific = append(specific, ip.String())
		}
	}
	return specific
}

// noteAddresses keeps the addresses of a Node for NodeAddresses.
func (k *Kube) noteAddresses(node *corev1.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.addresses = node.Status.Addresses
}

// NodeAddresses returns the addresses of the Node as this process last received them, none before. With
// NodeConfig.ExternalCloudProvider a cloud controller manager has set them. The result is read-only.
func (k *Kube) NodeAddresses() []corev1.NodeAddress {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.addresses
}
