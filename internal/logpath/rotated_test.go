package logpath_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/internal/logpath"
)

func TestRotated(t *testing.T) {
	at := time.Date(2026, 5, 1, 14, 0, 0, 7, time.FixedZone("", 2*60*60))
	assert.Equal(t, "0.log.20260501-120000.000000007", logpath.Rotated("0.log", at))
}

func TestRotatedAt(t *testing.T) {
	for name, want := range map[string]time.Time{
		"0.log.20260501-120000":                 time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), // a kubelet's
		"0.log.20260501-120000.gz":              time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
		"0.log.20260501-120000.000000007":       time.Date(2026, 5, 1, 12, 0, 0, 7, time.UTC),
		"0.log.20260501-120000.000000007.gz":    time.Date(2026, 5, 1, 12, 0, 0, 7, time.UTC),
		"0.log":                                 {},
		"0.log.gz":                              {},
		"0.log.20260501-120000.000000007.gz.gz": {},
		"0.log.20260501-126000":                 {},
		"10.log.20260501-120000":                {},
		"20260501-120000":                       {},
	} {
		got, ok := logpath.RotatedAt("0.log", name)
		assert.Equal(t, want, got, name)
		assert.Equal(t, !want.IsZero(), ok, name)
	}
}
