// Package runtime is the model of pods as seen from below: the vocabulary in
// which a container runtime's state is told (Pod, Sandbox, Container, Image),
// the actions that change it, and Plan, the pure function from what a pod asks
// for and what was seen to what is to be done.
//
// Nothing in this package does I/O, keeps time or starts goroutines, and no
// type of a wire protocol appears in it. Package cri carries plans out over the
// Container Runtime Interface; a runtime that speaks something else can be put
// in its place by fulfilling the small interfaces of the parts that use it.
package runtime
