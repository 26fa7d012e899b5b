package runtime_test

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
)

// A pod with an init container, from nothing to running: each look at the
// runtime gives the next steps.
func ExamplePlan() {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "migrate", Image: "db:1"}},
			Containers:     []corev1.Container{{Name: "app", Image: "app:1"}, {Name: "log", Image: "log:1"}},
		},
	}
	describe := func(plan []runtime.Action) {
		for _, a := range plan {
			fmt.Println(strings.TrimSpace(a.Type.String() + " " + a.Container))
		}
		fmt.Println("--")
	}
	now := time.Now()

	describe(runtime.Plan(pod, runtime.PlanInput{}, now))

	observed := runtime.Pod{Sandboxes: []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady}}}
	observed.Containers = []runtime.Container{{ID: "m", Name: "migrate", SandboxID: "s", State: runtime.Running}}
	describe(runtime.Plan(pod, runtime.PlanInput{Pod: observed}, now))

	observed.Containers[0].State = runtime.Exited
	describe(runtime.Plan(pod, runtime.PlanInput{Pod: observed}, now))
	// Output:
	// CreateSandbox
	// StartContainer migrate
	// --
	// --
	// StartContainer app
	// StartContainer log
	// --
}
