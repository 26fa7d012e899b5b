// Package admission decides whether a pod may run on this node. It checks resources
// and the number of pods, host ports, node selector and affinity, node name,
// operating system, taints, sysctls, and fields that this kind of node does not
// support.
//
// The checks are pure functions of the pod, the other pods and the configuration.
// Reasons and messages are the kubelet's, so that tools that look for OutOfcpu or
// NodeAffinity work unchanged.
package admission
