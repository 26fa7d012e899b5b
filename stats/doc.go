// Package stats measures the resource usage of a node and its pods: memory, CPU time and
// processes from cgroups (v1 and v2), pressure from the kernel's pressure stall
// information, file systems from the kernel, writable layers from the container
// runtime, and logs and local volumes by counting files.
//
// Each measurement has its time. Cheap ones are made for each [Provider.Usage], and
// [Provider.NodeUsage] makes only those that take microseconds. Counting files is
// expensive: [Provider.Run] counts the files of the tracked pods one by one, spread over
// [Config].DiskUsagePeriod. Those of other pods are counted only while they are
// requested by [Provider.RefreshDiskUsage]. A count that takes long is suspended and
// continued later, and its result so far is available.
//
// Kernel files are read through an fs.FS, so that tests can supply their own.
// [Summarize] converts a measurement to the kubelet's stats/summary.
package stats
