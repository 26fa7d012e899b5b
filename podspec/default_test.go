package podspec

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// SP-1: the whole of what an API server gives a pod that says next to nothing,
// field by field.
func TestDefault_Golden(t *testing.T) {
	bare, err := os.ReadFile("testdata/default.in.yaml")
	require.NoError(t, err)
	want, err := os.ReadFile("testdata/default.out.yaml")
	require.NoError(t, err)
	pods, _, err := Decode(bare, DecodeOptions{})
	require.NoError(t, err)
	Default(pods[0])
	got, err := yaml.Marshal(pods[0].Spec)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got))

	twice := pods[0].DeepCopy()
	Default(twice)
	assert.Equal(t, pods[0], twice, "defaulting twice is defaulting once")
	require.NoError(t, Validate(pods[0]))
}

// The old name of serviceAccountName stands in for it.
func TestDefault_ServiceAccount(t *testing.T) {
	assert.Equal(t, "old", podWith(t, one+"  serviceAccount: old\n").Spec.ServiceAccountName)
	assert.Equal(t, "new", podWith(t, one+"  serviceAccount: old\n  serviceAccountName: new\n").Spec.ServiceAccountName)
	assert.Empty(t, podWith(t, one).Spec.ServiceAccountName)
}

// SP-1
func TestDefault_PullPolicy(t *testing.T) {
	digest := "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for image, want := range map[string]corev1.PullPolicy{
		"busybox":                        corev1.PullAlways,
		"busybox:latest":                 corev1.PullAlways,
		"busybox:1.36":                   corev1.PullIfNotPresent,
		"registry:5000/busybox":          corev1.PullAlways,
		"registry:5000/a/busybox:1":      corev1.PullIfNotPresent,
		"registry:5000/a/busybox:latest": corev1.PullAlways,
		"busybox" + digest:               corev1.PullIfNotPresent,
		"busybox:1" + digest:             corev1.PullIfNotPresent,
		"busybox:latest" + digest:        corev1.PullAlways,
		"r:5000/busybox" + digest:        corev1.PullIfNotPresent,
	} {
		assert.Equal(t, want, pullPolicy(image), image)
	}
}

// SP-1: what a pod says for all its containers together.
func TestDefault_PodResources(t *testing.T) {
	for name, tc := range map[string]struct{ spec, requests, limits string }{
		"nothing said":                   {with("resources: {limits: {cpu: 1}}"), "{}", "{}"},
		"requests from containers":       {with("resources: {requests: {cpu: 1}}") + "  resources: {limits: {cpu: 3, memory: 1Gi}}\n", "{cpu: 1, memory: 1Gi}", "{cpu: 3, memory: 1Gi}"},
		"limits from all containers":     {with("resources: {limits: {cpu: 1, memory: 1Gi}}") + "  resources: {requests: {cpu: 2}}\n", "{cpu: 2, memory: 1Gi}", "{cpu: 2, memory: 1Gi}"},
		"a request above its limits":     {with("resources: {limits: {cpu: 2m}, requests: {memory: 2Gi}}") + "  resources: {requests: {cpu: 256}}\n", "{cpu: 256, memory: 2Gi}", "{cpu: 256}"},
		"requests beside one of the pod": {with("resources: {limits: {cpu: 999m, memory: 100M}, requests: {cpu: 1m}}") + "  resources: {requests: {memory: 100M}}\n", "{cpu: 1m, memory: 100M}", "{cpu: 999m, memory: 100M}"},
		"one container unbounded":        {"  containers:\n  - {name: a, image: i, resources: {limits: {cpu: 1}}}\n  - {name: b, image: i}\n  resources: {requests: {cpu: 2}}\n", "{cpu: 2}", "{}"},
		"huge pages":                     {with("resources: {limits: {cpu: 1, hugepages-2Mi: 4Mi}}") + "  resources: {limits: {cpu: 2}}\n", "{cpu: 1, hugepages-2Mi: 4Mi}", "{cpu: 2, hugepages-2Mi: 4Mi}"},
	} {
		t.Run(name, func(t *testing.T) {
			var want corev1.ResourceRequirements
			require.NoError(t, yaml.Unmarshal([]byte("{requests: "+tc.requests+", limits: "+tc.limits+"}"), &want))
			pod := podWith(t, tc.spec)
			got := corev1.ResourceRequirements{}
			if pod.Spec.Resources != nil {
				got = *pod.Spec.Resources
			}
			assertList(t, want.Requests, got.Requests)
			assertList(t, want.Limits, got.Limits)
		})
	}
}

// assertList compares amounts, not how they are written.
func assertList(t *testing.T, want, got corev1.ResourceList) {
	t.Helper()
	assert.Len(t, got, len(want), "%v", got)
	for name, w := range want {
		g, ok := got[name]
		assert.True(t, ok && g.Cmp(w) == 0, "%s: want %s, got %s", name, w.String(), g.String())
	}
}

func TestDefault_ShallowCopy(t *testing.T) {
	pod := decodeOne(t, web)
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{}
	was := pod.DeepCopy()
	Default(pod.DeepCopy())
	assert.Equal(t, was, pod)
}

// SP-1: what an API server makes of a negative grace period, for every source.
func TestDefault_NegativeGracePeriod(t *testing.T) {
	pod := podWith(t, "  containers: [{name: c, image: i}]\n  terminationGracePeriodSeconds: -5\n")
	assert.Equal(t, int64(1), *pod.Spec.TerminationGracePeriodSeconds)
	require.NoError(t, Validate(pod))
	pod.Spec.TerminationGracePeriodSeconds = new(int64(-5))
	assert.Equal(t, []string{"spec.terminationGracePeriodSeconds"}, errorPaths(t, Validate(pod)), "a pod that nobody defaulted")
}
