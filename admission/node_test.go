package admission

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

// A pod that says by its label that it is for another operating system is rejected as by the kubelet.
func TestAdmitter_SystemLabel(t *testing.T) {
	node := Config{Labels: map[string]string{corev1.LabelOSStable: "linux"}}
	p := pod(t, "a", "{containers: [{name: a, image: i}]}")
	for label, ok := range map[string]bool{"linux": true, "windows": false, "": false} {
		p.Labels = map[string]string{corev1.LabelOSStable: label}
		result := admit(t, node, p)
		assert.Equal(t, ok, result.Admitted, label)
		if !ok {
			assert.Equal(t, "PodOSSelectorNodeLabelDoesNotMatch", result.Reason)
			assert.Contains(t, result.Message, "The label kubernetes.io/os of the pod is \"")
		}
	}
}

// A pod whose groups the runtime would not restrict is rejected as by the kubelet: it would never start.
func TestAdmitter_GroupsPolicy(t *testing.T) {
	supported := false
	node := Config{StrictGroups: func() bool { return supported }}
	with := func(policy string) *corev1.Pod {
		return pod(t, "a", "{containers: [{name: a, image: i}], securityContext: {supplementalGroupsPolicy: "+policy+"}}")
	}
	result := admit(t, node, with("Strict"))
	assert.Equal(t, "SupplementalGroupsPolicyNotSupported", result.Reason)
	assert.Equal(t, "The runtime does not support supplementalGroupsPolicy Strict", result.Message)
	assert.True(t, admit(t, node, with("Merge")).Admitted)
	assert.True(t, admit(t, node, with("null")).Admitted)
	assert.True(t, admit(t, Config{}, with("Strict")).Admitted)
	supported = true
	assert.True(t, admit(t, node, with("Strict")).Admitted)
}

// The pods of a DaemonSet are bound by a field, which a long name does not make invalid.
func TestAdmitter_MatchFields(t *testing.T) {
	long := strings.Repeat("a", 40) + "." + strings.Repeat("b", 40)
	for requirement, ok := range map[string]bool{
		"key: metadata.name, operator: In, values: [" + long + "]":        true,
		"key: metadata.name, operator: In, values: [" + long + "b]":       false,
		"key: metadata.name, operator: NotIn, values: [" + long + "]":     false,
		"key: metadata.name, operator: NotIn, values: [other]":            true,
		"key: metadata.name, operator: In, values: [" + long + ", other]": false, // a field has one value
		"key: metadata.name, operator: In":                                false,
		"key: metadata.name, operator: Exists":                            false,
		"key: metadata.uid, operator: NotIn, values: [other]":             false,
	} {
		p := pod(t, "a", "{containers: [{name: a, image: i}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "+
			"{nodeSelectorTerms: [{matchFields: [{"+requirement+"}]}]}}}}")
		result := admit(t, Config{NodeName: long}, p)
		assert.Equal(t, ok, result.Admitted, requirement)
		if !ok {
			assert.Equal(t, ReasonNodeAffinity, result.Reason)
		}
	}
}
