// Package podresources serves the kubelet's pod resources API v1
// (k8s.io/kubelet/pkg/apis/podresources/v1): which devices each container has. Agents that
// monitor devices, such as DCGM's exporter, ask it to know whose figures they see.
//
// CPUs and memory are not assigned to containers by this agent and are left out.
package podresources
