package kube_test

import (
	"fmt"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/kube"
)

// An agent that is a node of a cluster. A program has a client from kubernetes.NewForConfig
// and a real runtime, and calls Run.
func Example() {
	k, err := kube.New(kube.Config{Client: fake.NewClientset(), NodeName: "node-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	opts, err := k.NodeOptions(kube.NodeConfig{Labels: map[string]string{"example.com/rack": "r7"}}, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	a, err := agent.New(append(opts, agent.WithSimulatedRuntime())...)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(a.Components().NodeName)
	// Output: node-1
}
