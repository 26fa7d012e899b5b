package admission

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

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
