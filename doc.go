// Package agent puts the parts of a Kubernetes node agent together.
//
// An Agent runs pods on one node, with or without an API server: it takes what
// should run from its sources, brings it about in a container runtime, and tells
// what became of it. All it does is done by packages that can be used alone; in
// the order in which data flows they are
//
//   - podsource: what should run here, from files, URLs, lists, as changes
//   - syncloop: one loop that joins all that can change a pod, and never blocks
//   - podworkers: one worker for each pod, and the states of its life
//   - podsync: the transactions of a pod: sync, terminate, finish
//   - runtime: what to do, as one pure function; runtime/cri does it
//   - volume, cgroup: what the containers stand on
//   - pleg, podcache: what was seen in the runtime, and when
//   - probe: whether containers are well
//   - status: what is true of a pod, told once
//   - containergc, imagegc, stats, eviction: room on the node
//
// This package only joins them: it has no policy of its own.
//
// # Promises
//
//   - New checks everything, tells all faults at once and changes nothing.
//   - Run blocks, owns every goroutine, and returns nil after a clean end.
//   - Pods outlive the agent unless the shutdown policy is to drain; the next
//     agent on the same root folder adopts them. Those of an embedded runtime end
//     with the process: embedded.Runtime.Close gives them their grace.
//   - When in doubt, a running pod is left alone.
//   - What others made is left alone. All that an agent makes bears an id that is
//     kept in its root folder; pods, logs and cgroups without it do not exist for
//     the agent, unless WithAdoption says so.
//   - There is no package state: agents in one process do not meet.
//
// With an endpoint of the CRI pods are containers. With WithSimulatedRuntime they are
// simulated inside the process, which needs neither root nor a daemon.
package agent
