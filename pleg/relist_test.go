package pleg

import (
	"errors"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

// PL-7: the first relist answers the callers that wait for a pod that it does not
// contain, unless something has happened to the pod since the relist began.
func TestGenerator_MarkAbsent(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name   string
		change func(*podRecord)
		want   bool
	}{
		{"a caller waits for any state", func(*podRecord) {}, true},
		{"no caller waits", func(r *podRecord) { r.next = nil }, false},
		{"an inspection is under way", func(r *podRecord) { r.current = r.next }, false},
		{"a runtime event was received", func(r *podRecord) { r.eventReceived = true }, false},
		{"its inspection has failed", func(r *podRecord) { r.failures = 1 }, false},
		{"a caller waits for a state as old as the relist", func(r *podRecord) { r.next.newerThan = now }, false},
		{"a caller waits for an older state", func(r *podRecord) { r.next.newerThan = now.Add(-1) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, err := New(Config{Runtime: newFakeRuntime(), Cache: discardCache{}})
			require.NoError(t, err)
			r := g.record("u")
			in := g.requestInspection(r, time.Time{}, true)
			tt.change(r)
			g.markAbsent(r, now)
			select {
			case <-in.done:
				assert.True(t, tt.want)
				assert.Nil(t, r.next)
				assert.Equal(t, runtime.Pod{UID: "u", ObservedAt: now}, in.pod)
				assert.Equal(t, now, r.observedAt)
			default:
				assert.False(t, tt.want)
			}
		})
	}
}

// PL-5: the back-off of a relist that contradicts the inspections.
func TestFlapDetector(t *testing.T) {
	const contradicting, observed, changed = 7, 8, 9
	now := time.Now()
	var d flapDetector
	assert.False(t, d.shouldIgnore(contradicting, now))
	for _, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
		backOff := time.Duration(seconds) * time.Second
		d.observe(contradicting, observed, observed, now)
		assert.Equal(t, flapDetector{contradicting, backOff, now.Add(backOff)}, d)
	}
	assert.True(t, d.shouldIgnore(contradicting, now.Add(time.Minute-1)))
	assert.False(t, d.shouldIgnore(contradicting, now.Add(time.Minute)))
	assert.False(t, d.shouldIgnore(changed, now), "another relist")
	before := d
	d.observe(0, observed, observed, now)
	assert.Equal(t, before, d, "an inspection that no relist has caused")
	d.observe(observed, observed, observed, now)
	assert.Zero(t, d, "a relist that agrees")
	d.observe(contradicting, observed, observed, now)
	d.observe(contradicting, observed, changed, now)
	assert.Zero(t, d, "an inspection that finds a change")
}

// PL-4: relists are frequent while the stream is closed or the last relist has failed.
func TestGenerator_RelistPeriod(t *testing.T) {
	g, err := New(Config{Runtime: newFakeRuntime(), Cache: discardCache{}})
	require.NoError(t, err)
	assert.Equal(t, time.Second, g.relistPeriod())
	g.stream = stream{open: true, relistPeriod: time.Minute}
	assert.Equal(t, time.Minute, g.relistPeriod())
	g.health.listErr = errors.New("relist failed")
	assert.Equal(t, time.Second, g.relistPeriod())
}

// Each bit of the input changes about half of the bits of the output.
func TestMix64(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for bit := range 64 {
		changed := 0
		for range 200 {
			x := rnd.Uint64()
			changed += bits.OnesCount64(mix64(x) ^ mix64(x^1<<bit))
		}
		assert.InDelta(t, 32, float64(changed)/200, 2, "bit %d", bit)
	}
}
