package agent_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/status"
)

// An agent runs one pod in its embedded, simulated runtime until the pod runs.
func Example() {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx:1"}}},
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a, err := agent.New(
		agent.WithNodeName("edge-1"),
		agent.WithNode(node.Config{DisableCgroups: true}), agent.WithSimulatedRuntime(),
		agent.WithSource("memory", podsource.NewMemory(pod)),
		agent.WithStatusSink(status.SinkFunc(func(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
			if st.Phase == corev1.PodRunning { // phases before it may be passed over
				fmt.Println(pod.Name, st.Phase)
				cancel()
			}
			return nil
		})),
	)
	if err != nil {
		panic(err)
	}
	fmt.Println(a.Run(ctx))
	// Output:
	// web Running
	// <nil>
}
