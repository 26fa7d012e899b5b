// Package podspec holds pure facts about a v1.Pod: what defaulting gives it,
// what makes it invalid, its QoS class, its effective requests and limits, its
// identity, and how the environment of its containers expands.
//
// Nothing in it does I/O or keeps state; every function may be called from any
// goroutine and none changes its argument unless its comment says so.
package podspec
