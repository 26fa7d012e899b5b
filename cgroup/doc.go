// Package cgroup creates a cgroup for each pod below the one of its QoS class, with the
// limits of its spec, and removes it with everything that is left in it.
//
// Cgroups have the names that a kubelet gives them, for the cgroupfs and the systemd
// driver, on cgroup v1 and v2. A container runtime that is given the pod's cgroup as
// cgroup parent places the pod's containers below it. The runtime also creates the
// directory in hierarchies that this package does not set up, and removes none.
// Therefore [Manager.Remove] removes the pod's directory from every hierarchy.
//
// Without writable cgroups the package does nothing and reports that: see
// [Manager.Unenforced].
package cgroup
