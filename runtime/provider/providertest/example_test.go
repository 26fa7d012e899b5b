package providertest_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime/provider/providertest"
)

// The test of a provider, with a pod that it can run until it is deleted.
func ExampleTestProvider() {
	_ = func(t *testing.T) { // TestProvider of your package
		mine := &memory{pods: map[string]*corev1.Pod{}}
		providertest.TestProvider(t, mine, &corev1.Pod{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/sleep", Args: []string{"1h"}}},
		}})
	}
	// Output:
}
