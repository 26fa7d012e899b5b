package cgroup

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
)

// container returns one with a CPU limit, and with limits of huge pages by resource name.
func container(name string, huge map[corev1.ResourceName]string) corev1.Container {
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	for page, n := range huge {
		limits[page] = resource.MustParse(n)
	}
	return corev1.Container{Name: name, Image: "i", Resources: corev1.ResourceRequirements{Limits: limits}}
}

// A pod may use the huge pages of those containers that have a limit, whatever the others have.
func TestPodLimits_HugePages(t *testing.T) {
	type huge = map[corev1.ResourceName]string
	const mib = 1 << 20
	sidecar := func(h huge) corev1.Container {
		c := container("sidecar", h)
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		return c
	}
	for name, tt := range map[string]struct {
		spec corev1.PodSpec
		want uint64
	}{
		"none": {corev1.PodSpec{Containers: []corev1.Container{container("a", nil)}}, 0},
		"of one of two": {corev1.PodSpec{Containers: []corev1.Container{
			container("a", huge{"hugepages-2Mi": "4Mi"}), container("b", nil),
		}}, 4 * mib},
		"of an init container": {corev1.PodSpec{
			InitContainers: []corev1.Container{container("init", huge{"hugepages-2Mi": "6Mi"})},
			Containers:     []corev1.Container{container("a", huge{"hugepages-2Mi": "4Mi"}), container("b", nil)},
		}, 6 * mib},
		"of a sidecar": {corev1.PodSpec{
			InitContainers: []corev1.Container{sidecar(huge{"hugepages-2Mi": "2Mi"}), container("init", nil)},
			Containers:     []corev1.Container{container("a", huge{"hugepages-2Mi": "4Mi"}), container("b", nil)},
		}, 6 * mib},
		"of the pod": {corev1.PodSpec{
			Containers: []corev1.Container{container("a", nil), container("b", nil)},
			Resources:  &corev1.ResourceRequirements{Limits: container("", huge{"hugepages-2Mi": "8Mi"}).Resources.Limits},
		}, 8 * mib},
		"of one container of a pod with a CPU limit": {corev1.PodSpec{
			Containers: []corev1.Container{container("a", huge{"hugepages-2Mi": "4Mi"}), container("b", nil)},
			Resources:  &corev1.ResourceRequirements{Limits: container("", nil).Resources.Limits},
		}, 4 * mib},
		"of two names": {corev1.PodSpec{Containers: []corev1.Container{
			container("a", huge{"hugepages-2Mi": "4Mi"}), container("b", huge{"hugepages-2048Ki": "2Mi"}),
		}}, 6 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: tt.spec}
			podspec.Default(pod)
			got := (&Config{}).podLimits(pod, []string{"2MB", "1GB"})
			assert.Equal(t, map[string]uint64{"2MB": tt.want, "1GB": 0}, got.huge)
		})
	}
}
