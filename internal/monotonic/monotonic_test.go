package monotonic_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/internal/monotonic"
)

// hasReading reports whether t has a monotonic reading.
func hasReading(t time.Time) bool { return t != t.Round(0) }

func TestAt(t *testing.T) {
	now := time.Now()
	for name, at := range map[string]time.Time{
		"a time of the past":                 now.Add(-time.Hour).Round(0),
		"now":                                now.Round(0),
		"a time of the future":               now.Add(time.Hour).Round(0),
		"the Unix epoch":                     time.Unix(0, 0),
		"a time with a reading":              now.Add(time.Minute),
		"a time without one in another zone": now.Add(time.Hour).In(time.UTC).Round(0),
	} {
		got := monotonic.At(at, now)
		assert.True(t, got.Equal(at), "%s: %v became %v", name, at, got)
		assert.True(t, hasReading(got), name)
	}
	assert.True(t, monotonic.At(time.Time{}, now).IsZero(), "no time stays none")
	far := monotonic.At(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), now)
	assert.Equal(t, time.Duration(math.MaxInt64), far.Sub(now), "as far as a duration goes")
}

func TestPast(t *testing.T) {
	now := time.Now()
	assert.Equal(t, -time.Hour, monotonic.Past(now.Add(-time.Hour).Round(0), now).Sub(now))
	assert.True(t, hasReading(monotonic.Past(now.Add(-time.Hour).Round(0), now)))
	assert.Equal(t, now, monotonic.Past(now.Add(3*time.Hour).Round(0), now), "what happened cannot be yet to come")
	assert.True(t, monotonic.Past(time.Time{}, now).IsZero(), "no time stays none")
}

func Example() {
	now := time.Now()
	finished := time.Unix(now.Add(-10*time.Second).Unix(), 0) // as a runtime tells it
	due := monotonic.Past(finished, now).Add(time.Minute)
	fmt.Println(due.Sub(now).Round(time.Second) <= 50*time.Second)
	// Output: true
}
