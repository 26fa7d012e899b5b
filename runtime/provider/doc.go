// Package provider runs pods that are not containers of this machine: jobs of a cloud or a
// batch system, virtual machines, WebAssembly, goroutines. A [Provider] creates, deletes
// and lists pods; New makes of it what agent.WithRuntime takes:
//
//	rt, err := provider.New(provider.Config{Provider: mine})
//	if err != nil {
//		return err
//	}
//	defer rt.Close()
//	a, err := agent.New(agent.WithRuntime(rt), ...)
//
// Everything else that a provider can do is an interface of its own, which it implements or
// not: [PodUpdater], [PodGetter], [PodNotifier], [Pinger], [LogReader], [CommandRunner],
// [Attacher], [PortForwarder], [StatsReporter]. What is missing is reported as not supported
// by this provider.
//
// Package providertest tests a provider.
//
// The methods are those of virtual-kubelet's providers where their types allow it.
// docs/virtual-kubelet.md says what differs.
//
// Guarantees:
//
//   - The status of a pod is the one that the provider reports, with its conditions,
//     container statuses and addresses. The agent adds what only it knows: the start time,
//     the address of the node, the condition PodScheduled, readiness gates, the reason of an
//     eviction. It never leaves a terminal phase.
//   - Calls that change one pod do not overlap. A call that hangs, panics or returns
//     nonsense delays its own pod only, even if it ignores its context.
//   - A pod that the provider has lost is created again, unless its restart policy is Never:
//     then it is Failed.
//   - A pod that the provider has when the agent starts is adopted: it is updated if it
//     differs, and not created again. One that no source contains is deleted.
package provider
