package logpath

import (
	"strings"
	"time"
)

// The name of a rotated log is that of the log, the time of the rotation, and Compressed
// when it is: 0.log.20260501-120000.000000000.gz.
const (
	Compressed = ".gz"

	stampFormat   = "20060102-150405.000000000"
	kubeletFormat = "20060102-150405"
)

// Rotated returns the name of a log that is rotated at a time.
func Rotated(base string, at time.Time) string { return base + "." + at.UTC().Format(stampFormat) }

// RotatedAt returns the time in the name of a rotated log, which may be the kubelet's.
func RotatedAt(base, name string) (time.Time, bool) {
	text, ok := strings.CutPrefix(strings.TrimSuffix(name, Compressed), base+".")
	if !ok {
		return time.Time{}, false
	}
	for _, format := range []string{stampFormat, kubeletFormat} {
		if at, err := time.Parse(format, text); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}
