// Package kubetest has API servers for tests. A Fake is one in the process, which works
// in a bubble of testing/synctest.
package kubetest
