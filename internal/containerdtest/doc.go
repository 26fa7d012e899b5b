//go:build linux

// Package containerdtest starts real containerd daemons for tests. Each has its own
// root, state, socket, network, cgroup parent and image registry, all on loopback and in
// one temporary directory that is removed after the test.
//
// It needs root and the Debian packages containerd, runc, containernetworking-plugins
// and busybox-static. If they are missing, a test is skipped with one line that names
// them; with CI=true it fails instead, so that a pipeline cannot pass by running nothing.
//
// A containerd 2.x is used beside Debian's when SUBLET_CONTAINERD2 names a
// directory with its containerd and containerd-shim-runc-v2, or when the containerd
// in PATH is one. SUBLET_CGROUP_DRIVER=systemd has the runtimes create cgroups by systemd.
// Where there is no Go, SUBLET_PAUSE names the program testdata/pause. SUBLET_TIMEOUT_FACTOR
// multiplies time limits. SUBLET_STRESS=all has tests that take long run on every containerd.
package containerdtest
