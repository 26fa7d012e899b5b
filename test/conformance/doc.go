// Package conformance runs the end-to-end tests of Kubernetes against examples/nodeagent as
// the only node of a cluster on loopback. The script run builds what it needs and starts it;
// docs/conformance.md has the results.
package conformance
