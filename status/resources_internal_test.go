package status

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

func resourceList(name corev1.ResourceName, amount string) corev1.ResourceList {
	return corev1.ResourceList{name: *quantity(amount)}
}

// ST-4: the resources of a container are those of its spec, with the observed values
// where the two differ.
func TestActual(t *testing.T) {
	type req = corev1.ResourceRequirements
	for _, tt := range []struct {
		name     string
		podLevel *corev1.ResourceRequirements
		spec     req
		observed runtime.Resources
		want     req
	}{
		{
			name: "adds a limit that is set and not in the spec", observed: runtime.Resources{CPULimit: quantity("10m")},
			want: req{Limits: resourceList("cpu", "10m")},
		},
		{
			name: "a pod-level limit of another resource is not this limit", podLevel: &req{Limits: resourceList("memory", "1Gi")},
			observed: runtime.Resources{CPULimit: quantity("10m")}, want: req{Limits: resourceList("cpu", "10m")},
		},
		{
			name: "leaves the pod-level limit out", podLevel: &req{Limits: resourceList("cpu", "500m")},
			observed: runtime.Resources{CPULimit: quantity("500m")},
		},
		{
			name: "keeps a limit below the least of the period", spec: req{Limits: resourceList("cpu", "50m")},
			observed: runtime.Resources{CPULimit: quantity("200m"), MinCPULimit: 200}, want: req{Limits: resourceList("cpu", "50m")},
		},
		{
			name: "replaces a limit above the least of the period", spec: req{Limits: resourceList("cpu", "50m")},
			observed: runtime.Resources{CPULimit: quantity("201m"), MinCPULimit: 100}, want: req{Limits: resourceList("cpu", "201m")},
		},
		{
			name: "leaves a request out that is not in the spec", observed: runtime.Resources{CPURequest: quantity("100m"), MemoryRequest: quantity("1Gi")},
		},
		{
			name: "replaces a request that differs", spec: req{Requests: resourceList("memory", "1Gi")},
			observed: runtime.Resources{MemoryRequest: quantity("2Gi")}, want: req{Requests: resourceList("memory", "2Gi")},
		},
		{
			name: "keeps the form of an equal request", spec: req{Requests: resourceList("memory", "1024Mi")},
			observed: runtime.Resources{MemoryRequest: quantity("1073741824")}, want: req{Requests: resourceList("memory", "1024Mi")},
		},
		{
			name: "keeps a limit of zero, which is none", spec: req{Limits: resourceList("cpu", "0")},
			observed: runtime.Resources{CPURequest: quantity("100m")}, want: req{Limits: resourceList("cpu", "0")},
		},
		{
			name: "removes a memory limit that is not set", spec: req{Limits: resourceList("memory", "1Gi")},
			observed: runtime.Resources{MemoryLimit: resource.NewQuantity(noMemoryLimit, resource.BinarySI)}, want: req{Limits: corev1.ResourceList{}},
		},
		{
			name: "keeps limits that the runtime does not report", spec: req{Limits: resourceList("cpu", "1")}, want: req{Limits: resourceList("cpu", "1")},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Resources: tt.podLevel}}
			assert.Equal(t, tt.want.Requests.Cpu().String()+" "+tt.want.Requests.Memory().String(),
				func() string {
					r := actual(pod, &tt.spec, &tt.observed).Requests
					return r.Cpu().String() + " " + r.Memory().String()
				}())
			got := actual(pod, &tt.spec, &tt.observed)
			assert.Len(t, got.Requests, len(tt.want.Requests))
			assert.Len(t, got.Limits, len(tt.want.Limits))
			for name, want := range tt.want.Limits {
				have, ok := got.Limits[name]
				assert.True(t, ok)
				assert.Zero(t, want.Cmp(have))
			}
		})
	}
}
