package podspec

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestFieldValue(t *testing.T) {
	pod := podWith(t, one)
	pod.Namespace, pod.UID = "ns", "u"
	pod.Labels = map[string]string{"b": "2\n\"x\"", "a/b": "1"}
	pod.Annotations = map[string]string{"k": "v"}
	pod.Spec.NodeName, pod.Spec.ServiceAccountName = "node", "sa"
	pod.Status = corev1.PodStatus{
		HostIP: "1.1.1.1", HostIPs: []corev1.HostIP{{IP: "1.1.1.1"}, {IP: "::1"}},
		PodIP: "2.2.2.2", PodIPs: []corev1.PodIP{{IP: "2.2.2.2"}, {IP: "::2"}},
	}
	for path, want := range map[string]string{
		"metadata.name": "p", "metadata.namespace": "ns", "metadata.uid": "u",
		"metadata.labels":           "a/b=\"1\"\nb=\"2\\n\\\"x\\\"\"",
		"metadata.annotations":      `k="v"`,
		"metadata.labels['a/b']":    "1",
		"metadata.labels['none']":   "",
		"metadata.annotations['k']": "v",
		"spec.nodeName":             "node", "spec.host": "node", "spec.serviceAccountName": "sa",
		"status.hostIP": "1.1.1.1", "status.hostIPs": "1.1.1.1,::1",
		"status.podIP": "2.2.2.2", "status.podIPs": "2.2.2.2,::2",
	} {
		got, ok := FieldValue(pod, path)
		assert.True(t, ok, path)
		assert.Equal(t, want, got, path)
	}
	for _, path := range []string{"", "spec", "metadata.finalizers", "spec.x['y']", "metadata.labels['"} {
		_, ok := FieldValue(pod, path)
		assert.False(t, ok, path)
	}
}

func TestResourceValue(t *testing.T) {
	pod := podWith(t, with("resources: {limits: {cpu: 1500m, memory: 100Mi}, requests: {cpu: 250m, memory: 1}}")+
		"  - {name: b, image: i}\n")
	node := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")}
	for _, tc := range []struct{ container, resource, divisor, want string }{
		{"a", "limits.cpu", "0", "2"},
		{"a", "limits.cpu", "1", "2"},
		{"a", "limits.cpu", "1m", "1500"},
		{"a", "requests.cpu", "0", "1"},
		{"a", "requests.cpu", "1m", "250"},
		{"a", "limits.memory", "0", "104857600"},
		{"a", "limits.memory", "1Mi", "100"},
		{"a", "limits.memory", "1M", "105"},
		{"a", "requests.memory", "1Gi", "1"},
		{"b", "limits.cpu", "0", "4"},
		{"b", "limits.memory", "1Gi", "8"},
		{"b", "requests.cpu", "0", "0"},
		{"b", "limits.ephemeral-storage", "0", "0"},
		{"", "limits.cpu", "1m", "1500"}, // its own
	} {
		got, err := ResourceValue(pod, &pod.Spec.Containers[0], &corev1.ResourceFieldSelector{
			ContainerName: tc.container, Resource: tc.resource, Divisor: resource.MustParse(tc.divisor),
		}, node)
		require.NoError(t, err)
		assert.Equal(t, tc.want, got, "%+v", tc)
	}
	_, err := ResourceValue(pod, nil, &corev1.ResourceFieldSelector{ContainerName: "z", Resource: "limits.cpu"}, node)
	assert.ErrorContains(t, err, `"z"`)
	_, err = ResourceValue(pod, &pod.Spec.Containers[0], &corev1.ResourceFieldSelector{Resource: "limits"}, node)
	assert.ErrorContains(t, err, "limits")
}

// What bounds a container without a limit of its own is the pod's limit, if there is one.
// Huge pages without a limit cannot be used.
func TestResourceValue_WithoutLimit(t *testing.T) {
	pod := podWith(t, "  resources: {limits: {cpu: 3, hugepages-2Mi: 4Mi}}\n"+with("resources: {limits: {cpu: 1, hugepages-2Mi: 2Mi}}")+
		"  - {name: b, image: i, resources: {requests: {memory: 1}}}\n")
	node := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("9Gi"), "hugepages-2Mi": resource.MustParse("64Mi"),
	}
	for _, tc := range []struct{ container, resource, want string }{
		{"a", "limits.cpu", "1"},
		{"b", "limits.cpu", "3"},
		{"b", "limits.memory", "8589934592"},
		{"b", "limits.ephemeral-storage", "9663676416"},
		{"a", "limits.hugepages-2Mi", "2097152"},
		{"b", "limits.hugepages-2Mi", "0"},
		{"b", "requests.hugepages-2Mi", "0"},
	} {
		got, err := ResourceValue(pod, nil, &corev1.ResourceFieldSelector{ContainerName: tc.container, Resource: tc.resource}, node)
		require.NoError(t, err)
		assert.Equal(t, tc.want, got, "%+v", tc)
	}
}
