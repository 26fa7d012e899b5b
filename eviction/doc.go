// Package eviction protects a node from running out of memory, disk and process ids, as
// pkg/kubelet/eviction does in the kubelet. When a threshold is met it first has unused
// images and containers removed, and then evicts the pod that ranks first.
//
// Guarantees:
//
//   - Prompt: a kernel notification ([ThresholdNotifier]) starts a measurement at
//     once. Without one the manager polls every [Config].MonitoringPeriod, and more
//     often where a threshold is close. After an eviction it waits until the pod is
//     cleaned up, measures again and continues at once if it has to.
//   - Cheap: while no threshold is met, only the node is measured
//     ([NodeUsageProvider]), which takes some microseconds, and no pod.
//   - Fair: pods above their request are evicted first, then by priority, then by how
//     far they are above it. Critical pods are never evicted or, on request, last. A hard
//     threshold shortens the grace period of pods that terminate already.
//   - Effective: no pod is evicted for usage that is not its own, and the interval
//     between evictions that have no effect grows.
//   - Careful: a measurement that is missing, or older than the start of the last
//     eviction, evicts no pod.
//   - Explained: each eviction has one event and one log line with the threshold, the
//     observed value and the ranking.
//
// Decisions are pure: thresholds, observations and ranking are values and functions of
// them. [Manager] measures, reclaims and evicts:
//
//	manager, err := eviction.New(eviction.Config{
//		Usage:      provider, // a stats.Provider
//		Pods:       evictor,  // a podworkers.Evictor
//		Reclaimers: []eviction.Reclaimer{containers, images},
//		Notifiers:  eviction.KernelNotifiers(eviction.KernelConfig{}),
//	})
//	if err != nil {
//		return err
//	}
//	return manager.Run(ctx)
package eviction
