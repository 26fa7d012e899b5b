// Package prom turns the hooks of an agent's parts into Prometheus collectors.
// It promises:
//
//   - Metrics go to the Registerer that is given and to no other: two agents in
//     one process do not meet.
//   - What means the same as a metric of the kubelet has its name and labels, so
//     that dashboards and alerts made for one work for the other. The rest begins
//     with sublet_. docs/metrics.md lists all.
//   - Series of pods that are gone go too.
//
// Each method of Metrics returns the hooks of one part; a part that has none to
// give leaves its metrics without series:
//
//	metrics, err := prom.New(registry)
//	if err != nil {
//		return err
//	}
//	a, err := agent.New(agent.WithHooks(agent.Hooks{
//		Sources: metrics.Sources(),
//		Loop:    metrics.Loop(),
//		Pods:    metrics.Pods(),
//		Workers: metrics.Workers(),
//		Pleg:    metrics.Pleg(),
//		Status:  metrics.Status(),
//		Probe:   metrics.Probe(),
//		CRI:     cri.Hooks{Call: metrics.RuntimeCall},
//	}))
//	if err != nil {
//		return err
//	}
//	err = prom.RegisterPods(registry, a.Pods)
package prom
