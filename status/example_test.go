package status_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// The statuses of one pod, sent to a callback.
func Example() {
	reported := make(chan string, 10)
	m, err := status.New(status.Config{Sinks: []status.Sink{
		status.SinkFunc(func(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
			reported <- fmt.Sprintln(pod.Name, st.Phase)
			return nil
		}),
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "1"},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main"}}},
	}
	get := func(state runtime.ContainerState) {
		m.Observe(pod, runtime.Report{Observed: runtime.Pod{
			UID: "1", ObservedAt: time.Now(), Containers: []runtime.Container{{ID: "c1", Name: "main", State: state}},
		}})
		fmt.Print(<-reported)
	}
	get(runtime.Running)
	get(runtime.Exited)
	cancel()
	fmt.Println(<-done)
	// Output:
	// web Running
	// web Succeeded
	// <nil>
}

// Generate is pure, so that a status can be worked out for anything that might
// be seen.
func ExampleGenerate() {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "app:1"}}}}
	report := runtime.Report{
		Observed: runtime.Pod{ObservedAt: time.Now()},
		Failures: map[string]runtime.Failure{"main": {Reason: "ErrImagePull", Message: "no such image"}},
	}
	st := status.Generate(pod, report, corev1.PodStatus{}, status.NodeInfo{}, time.Now())
	fmt.Println(st.Phase, st.ContainerStatuses[0].State.Waiting.Reason)
	// Output: Pending ErrImagePull
}
