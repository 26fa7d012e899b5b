//go:build linux

// Package containerdtest starts real containerd daemons for tests: each with a
// root, state, socket, network, cgroup parent and image registry of its own, all
// on loopback and in one temporary folder, and leaves nothing behind.
//
// It needs root, and from Debian the packages containerd, runc,
// containernetworking-plugins and busybox-static. Where they are missing a test
// is skipped with one line that says so; with CI=true it fails instead, so that a
// pipeline cannot pass by running nothing.
//
// A containerd 2.x is used beside Debian's when SUBLET_CONTAINERD2 names a
// folder with its containerd and containerd-shim-runc-v2, or when the containerd
// in PATH is one.
package containerdtest
