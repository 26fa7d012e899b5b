package timeline_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/timeline"
)

// The hooks of a History are called by the components of an agent.
func ExampleHistory() {
	history := timeline.New(timeline.Config{})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"}}
	history.PodManager().Admitted(pod)

	for _, pod := range history.Pods() {
		tl, _ := history.Pod(pod.UID)
		for _, entry := range tl.Entries {
			fmt.Println(pod.Name, entry.Kind)
		}
	}
	// Output:
	// web seen
	// web admitted
}
