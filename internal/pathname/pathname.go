// Package pathname says which strings of a pod may become part of a path.
package pathname

import "strings"

// longest is the longest name that Kubernetes gives: file systems take 255 bytes.
const longest = 253

// IsElement reports whether s can be one part of a path and nothing more: no path
// of its own, not the folder itself nor the one above, and not too long.
func IsElement(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= longest && !strings.ContainsAny(s, "/\x00")
}
