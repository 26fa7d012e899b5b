// Package bench has benchmarks of whole agents: the latency of one pod, thousands of pods,
// a hung pod, and the cost of idle pods. The runtime is a simulated one in a process of its
// own, so that the agent's CPU time and memory are measured alone. docs/scaling.md has the
// commands and the results.
package bench
