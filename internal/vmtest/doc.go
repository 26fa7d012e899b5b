//go:build linux

// Package vmtest boots a Debian with systemd, cgroup v2, containerd and runc in qemu, for
// tests of what the machine itself may not have. The processor is emulated, so it needs no
// KVM and is several times slower than the machine.
//
// image.sh builds the image once; SUBLET_VM names its directory:
//
//	internal/vmtest/image.sh ~/.cache/sublet-ci/vm
//	export SUBLET_VM=~/.cache/sublet-ci/vm
//
// A test boots machines of its own, each on a throw-away copy of the image, and runs scripts
// as root in them. Files get in by a directory, whose copy is /host there; there is no
// network, and what is to get out is printed:
//
//	m := vmtest.Start(t, vmtest.Config{Share: dir})
//	out := m.MustRun(t, "systemctl is-system-running; /host/nodeagent -version")
//
// Kill cuts the power, AwaitExit waits for a machine that goes down or reboots by itself;
// after both, Boot starts it again with the same disk.
//
// A person does the same by a command, which prints what the script prints:
//
//	go run ./internal/vmtest/vm -share DIR SCRIPT
package vmtest
