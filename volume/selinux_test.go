package volume

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/podspec"
)

// Only files that were made for the pod get the SELinux label of its containers.
func TestMount_SELinuxRelabel(t *testing.T) {
	s, m := &store{}, manager(t, nil)
	s.put(podspec.ConfigMap, "c", map[string]string{"a": "1"})
	s.put(podspec.Secret, "s", map[string]string{"a": "1"})
	for volume, want := range map[string]bool{
		"emptyDir: {}": true, "configMap: {name: c}": true, "secret: {secretName: s}": true,
		"projected: {sources: [{configMap: {name: c}}]}":                             true,
		"downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}": true,
		"hostPath: {path: /}": false, "image: {reference: 'r/i:1'}": false,
	} {
		p := pod(t, "u", "  - {name: v, "+volume+"}\n")
		for range 2 { // also from memory
			assert.Equal(t, want, mount(t, m, p, s)["v"].SELinuxRelabel, volume)
		}
	}
}
