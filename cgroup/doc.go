// Package cgroup creates a cgroup for each pod below the one of its QoS class, with the
// limits of its spec, and removes it with everything in it. It corresponds to the pod and
// QoS container managers in pkg/kubelet/cm of the kubelet.
//
// Guarantees:
//   - Cgroups have the kubelet's names, for the cgroupfs and the systemd driver, on cgroup
//     v1 and v2. CPU shares, quota, memory and huge page limits follow the kubelet's rules.
//   - [Manager.Ensure] is idempotent: it creates the cgroup or updates its limits.
//   - [Manager.Remove] kills all processes of the pod and removes its directories from every
//     hierarchy, because runtimes create some that they do not remove.
//   - Cgroups of other owners, of a kubelet for example, are not changed: see Config.Owner.
//   - Without writable cgroups nothing fails. [Manager.Unenforced] reports what is missing.
//
// A container runtime that gets the result of Ensure as cgroup parent creates the
// containers of the pod below it:
//
//	cgroups, err := cgroup.New(cgroup.Config{RuntimeDriver: client.CgroupDriver})
//	if err != nil {
//		return err
//	}
//	parent, err := cgroups.Ensure(ctx, pod) // before the sandbox is created
//	err = cgroups.Remove(ctx, pod.UID)      // after it was removed
package cgroup
