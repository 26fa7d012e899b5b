// Package cpumanager gives containers CPUs of their own: what the kubelet's CPU manager does
// with its static policy. A container of a Guaranteed pod that requests whole CPUs gets as
// many that no other container uses. All others share the rest, among them the reserved
// CPUs, which are never exclusive. Options change which CPUs these are.
//
// With Config.MemoryAffinity the memory and huge pages of such a container are of the NUMA nodes of its
// CPUs, where they suffice. Config.ReservedMemory is what no container gets there.
//
// A Manager is used from three places. As a topology.Provider it sets CPUs aside when a pod
// is admitted. As a podsync.Injector it assigns them when a container is created, and frees
// them when the pod has ended. Run moves the running containers that share CPUs to those that
// are left.
//
// Assignments are stored in a file. If it is lost, they are found again in the runtime, before
// any container gets other CPUs.
package cpumanager
