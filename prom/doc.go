// Package prom collects Prometheus metrics from the hooks of an agent's components, under
// the names of pkg/kubelet/metrics where the kubelet has the same metric.
//
// Guarantees:
//
//   - Metrics are registered only with the given Registerer, so two agents in one
//     process do not share metrics.
//   - A metric that means the same as one of the kubelet has the kubelet's name and
//     labels, so that dashboards and alerts work for both. All other names begin
//     with sublet_. docs/metrics.md lists all metrics.
//   - The series of a pod are dropped when the pod has finished.
//
// Each method of Metrics returns the hooks of one component. Metrics whose hooks are
// not used have no series:
//
//	metrics, err := prom.New(registry)
//	if err != nil {
//		return err
//	}
//	a, err := agent.New(agent.WithHooks(agent.Hooks{
//		Sources:     metrics.Sources(),
//		SyncLoop:    metrics.SyncLoop(),
//		PodManager:  metrics.PodManager(),
//		Housekeeper: metrics.Housekeeper(),
//		PodWorkers:  metrics.PodWorkers(),
//		PodSync:     metrics.PodSync(),
//		Cgroups:     metrics.Cgroups(),
//		Volumes:     metrics.Volumes(),
//		PLEG:        metrics.PLEG(),
//		Status:      metrics.Status(),
//		Probe:       metrics.Probe(),
//		Eviction:    metrics.Eviction(),
//		ImageGC:     metrics.ImageGC(),
//		ContainerGC: metrics.ContainerGC(),
//		LogRotation: metrics.LogRotation(),
//		CRI:         cri.Hooks{Call: metrics.RuntimeCall, OperationEnded: metrics.RuntimeOperation},
//	}))
//	if err != nil {
//		return err
//	}
//	err = prom.RegisterPods(registry, a.Pods)
//
// The managers of CPUs, NUMA nodes, devices and ResourceClaims have hooks of their own, for their
// Config, and RegisterNode registers what they count.
package prom
