// Package sub has no Limit but on Linux.
package sub

const Limit = 1 << 40
