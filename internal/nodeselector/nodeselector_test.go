package nodeselector

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

// The tests of package admission have the operators.
func TestMatches(t *testing.T) {
	nodeLabels := map[string]string{"zone": "a"}
	requirement := func(key, value string) []corev1.NodeSelectorRequirement {
		return []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}
	}
	here, elsewhere := corev1.NodeSelectorTerm{MatchExpressions: requirement("zone", "a")}, corev1.NodeSelectorTerm{MatchExpressions: requirement("zone", "b")}
	named := corev1.NodeSelectorTerm{MatchFields: requirement("metadata.name", "edge")}
	matches := func(terms ...corev1.NodeSelectorTerm) bool {
		return Matches(&corev1.NodeSelector{NodeSelectorTerms: terms}, "edge", nodeLabels)
	}
	assert.True(t, matches(elsewhere, here), "one term is enough")
	assert.True(t, matches(named))
	assert.False(t, matches(elsewhere))
	assert.False(t, matches(corev1.NodeSelectorTerm{}))
	assert.False(t, matches())
}
