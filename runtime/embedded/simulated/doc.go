// Package simulated is an executor of the embedded runtime that plays containers from
// scripts: duration, exit code, memory use, handling of SIGTERM, hangs, answers to
// probes. It reads time from package time only, so that thousands of containers can run
// for hours in a testing/synctest bubble.
//
//	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
//
// Without a script a container runs until it is stopped, unless its command is one of a
// few that are simulated: sleep, echo, exit, true, false, and sh -c of these. Annotations
// of a pod script its containers:
//
//	metadata:
//	  annotations:
//	    sim.sublet.dev/run-for: 30s          # all containers of the pod
//	    job.sim.sublet.dev/exit-code: 1,1,0  # the container job, by attempt
//
// Script has all keys; docs/simulate.md has a table of them and a complete program.
package simulated
