// Package agent assembles a Kubernetes node agent from its components.
//
// An Agent runs pods on one node, with or without an API server. It takes the desired
// state from its sources, changes the state of a container runtime accordingly, and
// reports the status of each pod to its sinks. The work is done by packages that can
// be used alone. In the order in which data flows they are
//
//   - podsource: the desired pods, from files, URLs and lists, delivered as changes
//   - syncloop: one loop that merges everything that concerns a pod, and never blocks
//   - podworkers: one worker per pod, and the phases of its lifecycle
//   - podsync: the transactions of a pod: sync, terminate, finish
//   - runtime: the plan, a pure function; runtime/cri carries it out
//   - volume, cgroup: what containers need on the node
//   - pleg, podcache: the observed state of each pod, and its time
//   - probe: container probes
//   - status: the status of each pod, generated and sent once per change
//   - containergc, imagegc, logrotate, stats, eviction: garbage collection and node pressure
//
// This package connects them: it builds them in order, and starts and stops them.
//
// # Replacing components
//
// Each component has an interface here, a field in Components, a default constructor and
// an option with a constructor. A decorator wraps what the default constructor returns:
//
//	agent.WithStatusManager(func(c *agent.Components) (agent.StatusManager, error) {
//		m, err := agent.NewStatusManager(c)
//		return countingStatuses{m}, err
//	})
//
// The directory examples/swap has such Examples of all components, and small implementations
// of them; examples/assembly does without this package.
//
// # Guarantees
//
//   - New checks everything, reports all errors at once and changes nothing.
//   - Run blocks, owns every goroutine, and returns nil after a clean stop.
//   - Pods outlive the agent, unless it has a podworkers.DrainConfig; the next
//     agent on the same root directory adopts them. Those of an embedded runtime end
//     with the process: embedded.Runtime.Close gives them their grace period.
//   - When in doubt, a running pod is left alone.
//   - The agent changes only what it made. Everything it makes carries an owner id
//     that is kept in its root directory; pods, logs and cgroups without it are
//     ignored, except for pods that WithAdoption names.
//   - There is no package state: agents in one process are independent.
//
// With the endpoint of a CRI runtime, pods are containers. With WithSimulatedRuntime they
// are simulated inside the process, which needs neither root nor a daemon.
package agent
