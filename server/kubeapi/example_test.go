package kubeapi_test

import (
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

// A node alone that kubectl can connect to. The API, the credentials and the server have a
// Run each, which belongs beside that of the agent.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	const address = "127.0.0.1:6443"
	creds, err := kubeapi.LoadCredentials(kubeapi.CredentialsConfig{Dir: filepath.Join(dir, "kube-api"), Addr: address, NodeName: "edge-1"})
	if err != nil {
		panic(err)
	}
	pods := func() []*corev1.Pod { return nil } // Agent.Pods
	store := kubeapi.NewStore(filepath.Join(dir, "pods"))
	api, err := kubeapi.New(kubeapi.Config{NodeName: "edge-1", Pods: pods, Store: store, Events: kubeapi.NewEvents()})
	if err != nil {
		panic(err)
	}
	_, err = server.New(server.Config{
		Addr: address, TLS: creds.TLS(), Authenticators: []server.Authenticator{creds}, Authorizer: kubeapi.AllowAll(),
		NodeName: "edge-1", KubeAPI: api, Pods: pods,
	})
	fmt.Println("kubectl --kubeconfig", filepath.Base(creds.Kubeconfig()), "get pods", err)
	// Output: kubectl --kubeconfig kubeconfig get pods <nil>
}
