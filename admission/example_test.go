package admission_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/admission"
)

func Example() {
	node, err := admission.New(admission.Config{
		NodeName:    "edge-1",
		Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	pod := &corev1.Pod{}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")},
	}}}
	result := node.Admit(pod, nil)
	fmt.Println(result.Admitted, result.Reason)
	fmt.Println(result.Message)
	// Output:
	// false OutOfcpu
	// Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000
}
