// Package runtime is the model of pods in a container runtime: the vocabulary of
// the observed state (Pod, Sandbox, Container, Image), the actions that change it,
// and Plan, the pure function from the spec of a pod and its observed state to the
// actions that are needed.
//
// Nothing in this package does I/O, reads a clock or starts goroutines, and no type
// of a wire protocol appears in it. Package cri executes plans over the Container
// Runtime Interface. Another runtime can take its place by implementing the small
// interfaces of the components that use it.
package runtime
