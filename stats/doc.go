// Package stats measures the resource usage of a node and its pods, as pkg/kubelet/stats,
// pkg/kubelet/cadvisor and pkg/kubelet/server/stats do in the kubelet.
//
// Memory, CPU time and processes are read from cgroups (v1 and v2), pressure from the
// kernel's pressure stall information, file systems from the kernel, and writable layers
// from the container runtime. Logs and local volumes are measured by counting files. A
// [Summary] also has swap, from cgroups, and the network of pods, from one of their processes. For
// containers with capabilities that this process does not have, that takes CAP_SYS_PTRACE.
//
// Guarantees:
//   - Each value has the time of its measurement. A zero time means that it is unknown.
//   - [Provider.NodeUsage] takes microseconds. [Provider.Usage] adds one runtime call and
//     some kernel files per pod; it counts no files. It measures what eviction needs, and a
//     [Provider.Summary] the rest. [Provider.CPUAndMemoryStats] is cheap, too.
//   - Files are counted in the background: [Provider.Run] counts those of the tracked pods
//     one pod at a time, spread over [Config].DiskUsagePeriod. Those of other pods are
//     counted only after [Provider.RefreshDiskUsage]. A long count is suspended and
//     continued later, and its result so far is available.
//   - Containers control the counted files: links, deep directories, mounts and millions
//     of files neither mislead a count nor delay those of other pods. They also control
//     network interfaces: a bounded number is reported of each pod, with names that can be printed.
//
// Kernel files are read through an fs.FS, so that tests can supply their own.
//
//	provider, err := stats.New(stats.Config{
//		Pods:           stats.Locator{Pods: evictor, Cgroups: cgroups, Dirs: syncer}.All,
//		ContainerStats: client,
//		NodeFS:         "/var/lib/edge",
//	})
//	if err != nil {
//		return err
//	}
//	go provider.Run(ctx)
//	usage, err := provider.Usage(ctx, time.Now().Add(-time.Minute))
//
// [Summarize] converts a measurement to the JSON form of the kubelet's stats/summary.
package stats
