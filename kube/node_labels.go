package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// isReservedLabel reports whether the admission plugin NodeRestriction lets no node set
// a label with this key on itself.
func isReservedLabel(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	if !ok {
		return false
	}
	within := func(parent string) bool { return domain == parent || strings.HasSuffix(domain, "."+parent) }
	if !within("kubernetes.io") && !within("k8s.io") {
		return false
	}
	if within("kubelet.kubernetes.io") || within("node.kubernetes.io") {
		return false
	}
	switch key {
	case corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
		corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
		corev1.LabelInstanceType, corev1.LabelInstanceTypeStable:
		return false
	}
	return true
}
