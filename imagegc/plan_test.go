package imagegc_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

var testTime = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// IG-1, IG-2, IG-5: random nodes, against the rules one by one.
func TestPlan_Rules(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		p := imagegc.Policy{MinAge: time.Hour}
		if rnd.IntN(2) == 0 {
			p.MaxAge = 10 * time.Hour
		}
		kept := map[string]bool{}
		s := imagegc.PlanInput{Records: map[string]imagegc.ImageRecord{}, BytesToFree: rnd.Uint64N(300), AllUnused: rnd.IntN(4) == 0}
		s.KeepReason = func(im runtime.Image) imagegc.Reason {
			if kept[im.ID] {
				return imagegc.ReasonInUse
			}
			return ""
		}
		var images []runtime.Image
		for i := range rnd.IntN(15) {
			im := runtime.Image{ID: fmt.Sprint(rnd.IntN(12)), Bytes: rnd.Uint64N(100), Pinned: rnd.IntN(8) == 0, Tags: []string{fmt.Sprint("t", i)}}
			images = append(images, im)
			kept[im.ID] = rnd.IntN(5) == 0
			if rnd.IntN(10) > 0 {
				first := testTime.Add(-time.Duration(rnd.IntN(20)) * time.Hour)
				s.Records[im.ID] = imagegc.ImageRecord{FirstDetected: first, LastUsed: first.Add(time.Duration(rnd.IntN(20)) * time.Hour)}
			}
		}
		plan := imagegc.Plan(images, s, p, testTime)
		require.Equal(t, plan, imagegc.Plan(images, s, p, testTime))
		check(t, seed, plan, images, s, p)
	}
}

func check(t *testing.T, seed uint64, plan []imagegc.Decision, images []runtime.Image, s imagegc.PlanInput, p imagegc.Policy) {
	t.Helper()
	at := func(c imagegc.Decision) string { return fmt.Sprint("seed ", seed, " image ", c.Image.ID) }
	pinned, ids := map[string]bool{}, map[string]bool{}
	for _, im := range images {
		pinned[im.ID] = pinned[im.ID] || im.Pinned
		ids[im.ID] = true
	}
	require.Len(t, plan, len(ids), "each image once")
	freed := uint64(0)
	var last imagegc.Decision
	for i, c := range plan {
		record, ok := s.Records[c.Image.ID]
		mayGo := !pinned[c.Image.ID] && s.KeepReason(c.Image) == "" && ok && testTime.Sub(record.FirstDetected) >= p.MinAge
		old := p.MaxAge > 0 && testTime.Sub(record.LastUsed) > p.MaxAge
		switch {
		case !mayGo:
			require.False(t, c.Remove, at(c))
		case old, s.AllUnused:
			require.True(t, c.Remove, at(c))
		default:
			require.Equal(t, freed < s.BytesToFree, c.Remove, at(c))
		}
		if c.Remove {
			require.True(t, i == 0 || last.Remove, "%s: those to remove come first", at(c))
			if i > 0 && last.Reason == c.Reason {
				require.False(t, c.Record.LastUsed.Before(last.Record.LastUsed), "%s: the least recently used first", at(c))
			}
			freed += c.Image.Bytes
		}
		require.NotEmpty(t, c.Reason, at(c))
		last = c
	}
}

func TestBytesToFree(t *testing.T) {
	p := imagegc.Policy{HighThresholdPercent: 85, LowThresholdPercent: 80}
	fs := func(capacity, available uint64) runtime.FSUsage {
		return runtime.FSUsage{CapacityBytes: capacity, AvailableBytes: available}
	}
	assert.Zero(t, imagegc.BytesToFree(fs(1000, 151), p), "84.9 %")
	assert.Equal(t, uint64(50), imagegc.BytesToFree(fs(1000, 150), p), "at the threshold")
	assert.Equal(t, uint64(200), imagegc.BytesToFree(fs(1000, 0), p))
	assert.Zero(t, imagegc.BytesToFree(fs(0, 0), p), "an unknown size")
	for _, high := range []int{100, 101} {
		assert.Zero(t, imagegc.BytesToFree(fs(1000, 0), imagegc.Policy{HighThresholdPercent: high, LowThresholdPercent: 80}), "switched off")
	}
	assert.Equal(t, uint64(1844674407370955264), imagegc.BytesToFree(fs(1<<63, 0), p), "no overflow")
}

// IG-5
func TestMergeByID(t *testing.T) {
	got := imagegc.MergeByID([]runtime.Image{
		{ID: "a", Tags: []string{"x:1"}, Digests: []string{"x@1"}, Bytes: 5},
		{ID: "b", Bytes: 1},
		{ID: "a", Tags: []string{"x:2"}, Digests: []string{"x@2"}, Bytes: 7, Pinned: true},
	})
	assert.Equal(t, []runtime.Image{
		{ID: "a", Tags: []string{"x:1", "x:2"}, Digests: []string{"x@1", "x@2"}, Bytes: 7, Pinned: true}, {ID: "b", Bytes: 1},
	}, got)
}

func BenchmarkPlan(b *testing.B) {
	var images []runtime.Image
	s := imagegc.PlanInput{Records: map[string]imagegc.ImageRecord{}, BytesToFree: 1 << 20}
	for i := range 500 {
		images = append(images, runtime.Image{ID: fmt.Sprint(i), Bytes: 1000})
		s.Records[fmt.Sprint(i)] = imagegc.ImageRecord{FirstDetected: testTime.Add(-time.Hour), LastUsed: testTime.Add(-time.Duration(i) * time.Second)}
	}
	b.ReportAllocs()
	for b.Loop() {
		imagegc.Plan(images, s, imagegc.Policy{}, testTime)
	}
}
