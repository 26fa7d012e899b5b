package cri_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// A pod is planned, started, looked at, ended and removed, on a runtime inside
// the process. With cri.Dial("unix:///run/containerd/containerd.sock") it would
// be on the one of the machine.
func Example() {
	ctx := context.Background()
	inside, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = inside.Close() }()
	cc, err := inside.Dial()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = cc.Close() }()
	client, err := cri.New(cc, cri.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "7a1c"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox:1"}}},
	}
	podspec.Default(pod)
	plan := runtime.Plan(pod, runtime.PlanInput{}, time.Now())
	for _, action := range plan {
		fmt.Printf("%v(%s)\n", action.Type, action.Container)
	}
	if applied := client.Apply(ctx, pod, plan, runtime.RunOptions{}); len(applied.Failures) > 0 {
		fmt.Println(applied.Failures)
	}
	observed, err := client.Pod(ctx, pod.UID)
	fmt.Println(observed.Name, observed.Containers[0].Name, observed.Containers[0].State, err)

	err = client.Kill(ctx, pod, observed, runtime.Termination{GracePeriod: time.Second})
	fmt.Println("killed:", err)
	observed, _ = client.Pod(ctx, pod.UID)
	err = client.Remove(ctx, observed)
	fmt.Println("removed:", err)
	// Output:
	// CreateSandbox()
	// StartContainer(main)
	// web main Running <nil>
	// killed: <nil>
	// removed: <nil>
}
