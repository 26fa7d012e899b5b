package node_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/node"
)

// The cgroup of all pods must not be smaller than what pods are admitted for.
func Example() {
	c := node.Config{
		Allocatable:      corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")},
		PodsCgroupLimits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")},
	}
	fmt.Println(c.Check())
	// Output: node: PodsCgroupLimits[memory] of 2Gi is less than Allocatable of 4Gi
}
