// Package cgroup gives each pod a control group of its own below one for its
// QoS class, with the limits that its spec asks for, and takes it away again
// with whatever was left in it.
//
// The groups have the names that a kubelet gives them, for the cgroupfs and the
// systemd driver, on cgroup v1 and v2. A container runtime that is handed the
// pod's group as cgroup parent puts the pod's containers below it; it makes the
// group's folder in hierarchies that this package does not set up, and removes
// none. So [Manager.Remove] clears the pod's folder from every hierarchy.
//
// Without cgroups that can be written the package does nothing and says so: see
// [Manager.Unenforced].
package cgroup
