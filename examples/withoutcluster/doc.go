// Package withoutcluster tests a controller of pods with an agent and simulated pods: half
// an hour of a node passes in a fraction of a second. It is the program of
// docs/simulate.md.
package withoutcluster
