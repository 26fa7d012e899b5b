package logrotate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestStamp(t *testing.T) {
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
		got, ok := stamp("0.log", name)
		assert.Equal(t, want, got, name)
		assert.Equal(t, !want.IsZero(), ok, name)
	}
}

func TestPlanCleanup(t *testing.T) {
	const (
		first, second, third = "0.log.20260101-000000", "0.log.20260102-000000.000000000", "0.log.20260103-000000"
		sameAsSecond         = "0.log.20260102-000000"
	)
	last := time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		names []string
		keep  int
		want  cleanupPlan
	}{
		"nothing was rotated":                      {[]string{"0.log", "1.log"}, 4, cleanupPlan{}},
		"all are compressed except the newest":     {[]string{third, "0.log", first, second}, 4, cleanupPlan{compress: []string{first, second}, last: last}},
		"compressed ones stay as they are":         {[]string{first + ".gz", third, second + ".gz"}, 4, cleanupPlan{last: last}},
		"the oldest are removed":                   {[]string{third, second, first}, 1, cleanupPlan{remove: []string{first, second}, last: last}},
		"compressed ones too":                      {[]string{third, second + ".gz", first + ".gz"}, 1, cleanupPlan{remove: []string{first + ".gz", second + ".gz"}, last: last}},
		"as many as there may be are kept":         {[]string{third, second + ".gz", first + ".gz"}, 2, cleanupPlan{remove: []string{first + ".gz"}, last: last}},
		"all are removed":                          {[]string{third}, 0, cleanupPlan{remove: []string{third}, last: last}},
		"with both, the original is removed":       {[]string{third, first, first + ".gz"}, 4, cleanupPlan{remove: []string{first}, last: last}},
		"in whichever order they are listed":       {[]string{first + ".gz", first, third}, 4, cleanupPlan{remove: []string{first}, last: last}},
		"both are removed if there are too many":   {[]string{third, first, first + ".gz"}, 1, cleanupPlan{remove: []string{first + ".gz", first}, last: last}},
		"the newest is removed if it is complete":  {[]string{third, third + ".gz"}, 4, cleanupPlan{remove: []string{third}, last: last}},
		"temporary files are removed":              {[]string{third, third + ".tmp", first + ".gz.tmp", "1.log.tmp"}, 4, cleanupPlan{broken: []string{third + ".tmp", first + ".gz.tmp"}, last: last}},
		"of the same time, the names decide":       {[]string{third, second, sameAsSecond}, 2, cleanupPlan{remove: []string{sameAsSecond}, compress: []string{second}, last: last}},
		"and they decide in whichever order":       {[]string{third, sameAsSecond, second}, 2, cleanupPlan{remove: []string{sameAsSecond}, compress: []string{second}, last: last}},
		"a name of another log is left alone":      {[]string{"10.log.20260101-000000", third}, 0, cleanupPlan{remove: []string{third}, last: last}},
		"what only looks like one is left as well": {[]string{"0.log.bak", "0.log.20269901-000000", third}, 4, cleanupPlan{last: last}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, planCleanup("0.log", tt.names, tt.keep))
		})
	}
}

func TestNextStamp(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	assert.Equal(t, now, nextStamp(time.Time{}, now))
	assert.Equal(t, now, nextStamp(now.Add(-1), now))
	assert.Equal(t, now.Add(1), nextStamp(now, now), "no two rotated logs have the same name")
	assert.Equal(t, now.Add(time.Hour+1), nextStamp(now.Add(time.Hour), now))
}
