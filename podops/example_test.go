package podops_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podops"
)

// A drain before maintenance that leaves one pod alone. In an agent its Operator is ready to use:
// agent.Agent embeds it.
func ExampleOperator_Drain() {
	node := &world{pods: []*corev1.Pod{newPod("web", "u1", "app"), newPod("monitor", "u2", "app")}}
	o, err := podops.New(podops.Config{
		Pods: func() []*corev1.Pod { return node.pods }, PodCache: node, Runtime: node, Workers: node, Logs: node,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = o.Drain(context.Background(), podops.DrainOptions{
		GracePeriod: 10 * time.Second,
		Filter:      func(pod *corev1.Pod) bool { return pod.Name != "monitor" },
	})
	fmt.Println(err, node.take())
	// Output: <nil> [evict web 10s Evicted true]
}
