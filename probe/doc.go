// Package probe runs the startup, readiness and liveness probes of containers, by exec,
// HTTP, TCP and gRPC. It corresponds to pkg/kubelet/prober and pkg/probe of the kubelet.
//
// Guarantees:
//   - One timer per probe, and no goroutine while no probe runs. Each probe keeps its
//     schedule without drift. A handler that hangs is cancelled at its timeout.
//   - Spread: probes that could all run at once get a phase that is computed from the
//     UID of the pod, so that it is the same after a restart of the agent.
//   - Readiness and liveness probes start as soon as the startup probe has succeeded.
//   - Results belong to a container, not to its name: they start from the beginning for
//     a restarted container. A container is not probed again after its liveness or
//     startup probe has failed, because it will be killed.
//   - A result is delivered when it changes. Undelivered changes are merged: the latest
//     result of each probe is kept.
//
// A Manager finds containers in the pod cache: on AddPod, which must be called whenever
// a pod was inspected, and otherwise once per period.
//
//	m, err := probe.New(probe.Config{PodCache: &cache, Execer: client})
//	if err != nil {
//		return err
//	}
//	go m.Run(ctx)
//	m.AddPod(pod)
//	for range m.Notify() {
//		for _, c := range m.Drain() {
//			fmt.Println(c.UID, c.Container, c.Type, c.Result)
//		}
//	}
package probe
