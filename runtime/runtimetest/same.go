package runtimetest

import (
	"strconv"
	"strings"
	"unicode"
)

// same expects two values to be equal.
func same[T comparable](c *CaseT, want, got T, what string) {
	if want != got {
		c.Errorf("%s is %v, want %v", what, shown(got), shown(want))
	}
}

// shown quotes a string that would be hard to see in a message, as one that is empty or has line breaks.
func shown(v any) any {
	if s, ok := v.(string); ok && (s == "" || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) })) {
		return strconv.Quote(s)
	}
	return v
}
