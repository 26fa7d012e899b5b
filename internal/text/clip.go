// Package text bounds texts of others.
package text

import (
	"errors"
	"strings"
)

// Clip returns s as valid UTF-8 of at most limit bytes: its beginning, which says what has failed, and
// more if that is not all. What is cut off is not retained in memory.
func Clip(s string, limit int, more string) string {
	text := strings.ToValidUTF8(s[:min(len(s), limit+1)], "\uFFFD")
	if len(s) <= limit && len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:min(len(text), limit-len(more))], "") + more
}

// maxErrorLength bounds what is repeated of an error of another program: it is reported with a pod, and logged.
const maxErrorLength = 1024

// Error returns err, or, if its text has more than 1 KiB, an error with the beginning of the text. That
// one wraps nothing.
func Error(err error) error {
	if err == nil || len(err.Error()) <= maxErrorLength {
		return err
	}
	return errors.New(Clip(err.Error(), maxErrorLength, "…"))
}
