// Package nodeshutdown terminates the pods of a node in the order of their priorities before the
// machine shuts down, as a kubelet with shutdownGracePeriod does.
//
// A Manager keeps a delay lock of the login manager (package logind has systemd's). When a shutdown
// begins, new pods are rejected with reason NodeShutdown, the node is not ready, and each group of
// pods is terminated within its period, the group with the lowest priority first. The lock is released when
// all pods have finished, or 10 s after the last period, in which pods that did not exit by
// themselves are killed and reported; then the machine goes down.
//
// A terminated pod is Failed with reason Terminated and the condition DisruptionTarget. A pod of an
// API server stays so, for its controller to replace it. A static pod starts again with the next
// agent.
//
//	m, err := nodeshutdown.New(nodeshutdown.Config{
//		Groups: nodeshutdown.GracePeriods(30*time.Second, 10*time.Second), Dial: logind.Dial,
//		StateFile: "/var/lib/agent/node-shutdown.json", NodeName: name, Logger: log,
//	})
//	a, err := agent.New(
//		agent.WithAdmitter(m),
//		agent.WithNode(node.Config{ReadyChecks: []node.Check{m.Check}}),
//		agent.WithRunner("node shutdown", func(c *agent.Components) (agent.Runner, error) {
//			return m.Runner(podworkers.Evictor{Workers: c.PodWorkers, Statuses: c.StatusManager}, c.Recorder), nil
//		}),
//	)
package nodeshutdown
