// Package probe finds out whether containers are well: whether they have started,
// are ready to serve, and are alive.
//
// What it promises:
//   - One timer a probe and no goroutine at rest. A probe keeps its own beat: it
//     does not drift, and a handler that hangs is ended at its timeout.
//   - Spread: probes that could all fire at once fire at times that follow from
//     the pod's UID, so that they are the same after a restart of the agent.
//   - Startup holds back the other two, which begin as soon as it has succeeded.
//   - Results belong to a container, not to its name: one that was restarted
//     starts anew, and one whose liveness or startup probe has failed is not
//     probed again, as it is to be killed.
//   - Told once: a result is told when it changes. What is not read is kept, one
//     entry a pod, the newest result of each probe.
//
// A Manager learns of containers from the views of pods: on Add, which is to be
// called whenever a pod is looked at, and else once a period.
//
//	m, err := probe.New(probe.Config{Seen: &cache, Execer: client})
//	if err != nil {
//		return err
//	}
//	go m.Run(ctx)
//	m.Add(pod)
//	for range m.Notify() {
//		for _, c := range m.Drain() {
//			fmt.Println(c.UID, c.Container, c.Kind, c.Result)
//		}
//	}
package probe
