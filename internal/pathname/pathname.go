// Package pathname checks strings from pods that become part of a path.
package pathname

import "strings"

// maxLength is the maximum length of a name in Kubernetes; file systems allow 255 bytes.
const maxLength = 253

// IsElement reports whether s can be used as one element of a path: it is not a path
// itself, not "." or "..", and not too long.
func IsElement(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= maxLength && !strings.ContainsAny(s, "/\x00")
}
