// Package agenttest tests whole agents on a simulated node.
//
// A Harness is a node in a testing/synctest bubble: a simulated runtime behind a proxy
// that injects faults, a memory source, a directory of manifests, and one agent process at
// a time, which can be stopped and killed. It records every call that changes the runtime,
// every status and every warning in a Trace, and fails the test if the agent breaks one of
// these invariants:
//
//   - No container starts while another one of its name runs in the pod.
//   - A pod never leaves a final phase, restart counts never decrease, and no exit code is
//     lost. See StatusProblems.
//   - No status is sent twice in a row by one process.
//   - A pod is reported as deleted only after its containers have stopped.
//
// A FaultPlan draws random faults between agent and runtime from a seed. Responses that
// are wrong suspend those invariants that no agent can keep then.
//
// A Machine is the smaller one: a simulated runtime and a root directory, without trace and
// faults, to which each test gives its own sources and sinks.
//
// The simpler parts work without these: Pod, SizedPod and Pods make pods for the
// simulated runtime, Statuses is a sink, and Main runs the tests of a package with
// bubbles.
package agenttest
