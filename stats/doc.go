// Package stats measures how much of a node is used, and by which pods: memory,
// processor time and processes from cgroups (v1 and v2), pressure from the
// kernel's pressure stall information, file systems from the kernel, writable
// layers from the container runtime, logs and local volumes by counting files.
//
// Every figure has the time at which it was taken. What costs little is read
// anew for each [Provider.Usage], and [Provider.NodeUsage] reads only what costs
// next to nothing. Counting files does cost: [Provider.Run] goes through the
// folders of the pods that are watched one by one, spread over
// [Config].DiskEvery, so that there is never a storm of them; those of others are
// counted while somebody wants to know ([Provider.RefreshDiskUsage]). A count that takes long
// is left off and gone on with, and tells what it came to so far.
//
// Kernel files are read through an fs.FS, so that tests bring trees of their own.
// [Summarize] gives a reading the form of the kubelet's stats/summary.
package stats
