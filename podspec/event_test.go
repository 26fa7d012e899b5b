package podspec

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

// As that of a kubelet, the event of a node refers to it by name; only who has its Node knows the UID.
func TestNewNodeEvent_HasNoUID(t *testing.T) {
	e := NewNodeEvent("n1", corev1.EventTypeNormal, "NodeReady", "ready", time.Now())
	assert.Equal(t, corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1"}, e.InvolvedObject)
	assert.Equal(t, "n1", e.Source.Host)
}

func TestNewContainerEvent_FieldPath(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init"}}, Containers: []corev1.Container{{Name: "main"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}},
	}}
	pod.Name, pod.Namespace = "p", "ns"
	for name, want := range map[string]string{
		"main": "spec.containers{main}", "init": "spec.initContainers{init}", "debug": "spec.ephemeralContainers{debug}", "gone": "", "": "",
	} {
		e := NewContainerEvent(pod, name, corev1.EventTypeNormal, "Created", "Container created", time.Now())
		assert.Equal(t, want, e.InvolvedObject.FieldPath, name)
		assert.Equal(t, []string{"p", "Created", "Container created"}, []string{e.InvolvedObject.Name, e.Reason, e.Message})
	}
}
