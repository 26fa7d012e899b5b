// Package timeline keeps in memory what happened to the pods of a node, and the state of
// the node itself, for people who look: when each pod was seen, admitted and started, what
// that waited for, how its containers ended, and why pods were evicted and images removed.
//
// A History is an observer: its methods return the hooks of other packages, and each call
// of a hook becomes an Entry. Package server/ui shows it.
//
//	history := timeline.New(timeline.Config{})
//	a, err := agent.New(
//		agent.WithHooks(agent.Hooks{
//			PodManager: history.PodManager(), PodWorkers: history.PodWorkers(), PodSync: history.PodSync(),
//			Status: history.Status(), Housekeeper: history.Housekeeper(), CRI: history.CRI(),
//			Eviction: history.Eviction(), ImageGC: history.ImageGC(), ContainerGC: history.ContainerGC(),
//		}),
//		agent.WithRunner("timeline", func(c *agent.Components) (agent.Runner, error) {
//			return timeline.Sampler{History: history, Usage: c.Stats, Capacity: c.Node.Capacity, Conditions: c.NodeStatus.Conditions}, nil
//		}),
//	)
//
// Guarantees:
//
//   - Memory is bounded: by Config.MaxPods, MaxPodEntries and MaxEntries, an hour of
//     samples of the node, and a hundred evictions and collections each. Texts are
//     truncated. A History that is full drops the oldest pods that are gone, then the
//     oldest entries of the pods that have most; the first entries of each pod stay.
//   - Times are read from the clock of this process where and when the agent records its
//     events; the start and the end of a container's run are those that the runtime
//     reports.
//   - It has no environment variables, no commands, no credentials and nothing that a
//     container has written.
//   - A hook takes microseconds and never waits for a reader: a reader asks for what
//     changed since the version that it has, and nothing is queued for it.
package timeline
