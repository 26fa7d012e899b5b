package admission

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

func TestHasAppArmor(t *testing.T) {
	for text, want := range map[string]bool{"Y\n": true, "N\n": false, "": false} {
		assert.Equal(t, want, HasAppArmor(fstest.MapFS{"sys/module/apparmor/parameters/enabled": {Data: []byte(text)}}), "%q", text)
	}
	assert.False(t, HasAppArmor(fstest.MapFS{}))
}

// A pod that is to be confined does not run unconfined: it is rejected as by the kubelet.
func TestAdmitter_AppArmor(t *testing.T) {
	const profile = "securityContext: {appArmorProfile: {type: "
	annotated := func(value string) *corev1.Pod {
		p := pod(t, "a", "{containers: [{name: a, image: i}]}")
		p.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/a": value}
		return p
	}
	for name, tc := range map[string]struct {
		pod *corev1.Pod
		ok  bool
	}{
		"without a profile":        {pod(t, "a", "{containers: [{name: a, image: i, securityContext: {}}]}"), true},
		"of the pod":               {pod(t, "a", "{containers: [{name: a, image: i}], "+profile+"RuntimeDefault}}}"), false},
		"of a container":           {pod(t, "a", "{containers: [{name: a, image: i}, {name: b, image: i, "+profile+"Localhost, localhostProfile: p}}}]}"), false},
		"of an init container":     {pod(t, "a", "{containers: [{name: a, image: i}], initContainers: [{name: b, image: i, "+profile+"RuntimeDefault}}}]}"), false},
		"unconfined":               {pod(t, "a", "{containers: [{name: a, image: i, "+profile+"Unconfined}}}], "+profile+"Unconfined}}}"), true},
		"of an annotation":         {annotated("runtime/default"), false},
		"unconfined by annotation": {annotated("unconfined"), true},
	} {
		result := admit(t, Config{NoAppArmor: true}, tc.pod)
		assert.Equal(t, tc.ok, result.Admitted, name)
		if !tc.ok {
			assert.Equal(t, "AppArmor", result.Reason, name)
			assert.Equal(t, "AppArmor is not enabled in the kernel of the node", result.Message)
			tc.pod.Status.Phase = corev1.PodRunning
			assert.True(t, admit(t, Config{NoAppArmor: true}, tc.pod).Admitted, name)
			tc.pod.Status.Phase = corev1.PodPending
		}
		assert.True(t, admit(t, Config{}, tc.pod).Admitted, name)
	}
}
