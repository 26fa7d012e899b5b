package runtime_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

// CR-1: a container without a limit takes none of those of the others from the sandbox, when it is made and when it is resized.
func TestPodResourcesOf(t *testing.T) {
	amounts := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	limited := corev1.Container{Name: "a", Resources: corev1.ResourceRequirements{Requests: amounts("500m", "1Mi"), Limits: amounts("2", "8Mi")}}
	free, overhead := corev1.Container{Name: "b"}, amounts("1", "64Mi")
	pod := func(containers ...corev1.Container) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Overhead: overhead, Containers: containers}}
	}
	assert.Equal(t, runtime.PodResources{CPURequest: 500, CPULimit: 2000, MemoryLimit: 8 << 20}, runtime.PodResourcesOf(pod(limited)))
	assert.Equal(t, runtime.PodResources{CPURequest: 500, CPULimit: 2000, MemoryLimit: 8 << 20}, runtime.PodResourcesOf(pod(limited, free)))
	assert.Equal(t, runtime.PodResources{CPURequest: 1000, CPULimit: 4000, MemoryLimit: 16 << 20}, runtime.PodResourcesOf(pod(limited, limited)))
	assert.Zero(t, runtime.PodResourcesOf(pod(free)))
}
