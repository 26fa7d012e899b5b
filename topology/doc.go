// Package topology describes which CPUs and memory of a node are close to each other, and
// decides from which NUMA nodes a container, or all of a pod, gets its resources: what the kubelet's topology
// manager does. Detect reads the topology of a Linux machine; a Topology can as well be
// written down, for tests and for other machines.
//
// Those who hand out CPUs or devices are Providers. A Manager asks them for Hints, finds an
// Affinity that suits all, and rejects a pod for which its Policy finds none.
package topology
