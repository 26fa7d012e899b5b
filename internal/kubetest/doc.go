// Package kubetest has API servers for tests. Start starts a real one with etcd, which
// the module in the directory apiserver builds. A Fake is one in the process, which works
// in a bubble of testing/synctest.
package kubetest
