// Package kubelet runs the kubelet of Kubernetes on the embedded runtime while pods come
// and go, and asserts that statuses are right and that nothing is left. The script run
// builds what it needs and starts it; docs/kubelet.md has the results.
package kubelet
