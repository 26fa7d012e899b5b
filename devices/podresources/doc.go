// Package podresources serves the kubelet's pod resources API, v1 and v1alpha1
// (k8s.io/kubelet/pkg/apis/podresources): which devices each container has. Agents that
// monitor devices, such as DCGM's exporter, ask it to know whose figures they see.
//
// CPUs are those that a container has for itself, if Config.CPUs is set, and memory is what it has of
// the NUMA nodes that it is confined to, if Config.Memory is set. The devices of ResourceClaims are
// those of the requests that a container uses, if Config.Claims is set.
//
// Calls above 100 per second fail with ResourceExhausted, as those of a kubelet. A connection beyond 256
// is closed at once, and one that is idle for ten minutes, too: clients of gRPC connect again with their
// next call.
package podresources
