// Package needtest shows what a Config needs of a runtime.
package needtest

import "github.com/sublet-dev/agent/runtime"

// Names returns each need as text, those that are optional marked as such.
func Names(needs []runtime.Need) (names []string) {
	for _, n := range needs {
		name := n.String()
		if n.Optional {
			name = "optional: " + name
		}
		names = append(names, name)
	}
	return names
}
