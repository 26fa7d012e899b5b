package eviction

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

func metBy(t *testing.T, hard, reclaim string, available, capacity uint64) metThreshold {
	t.Helper()
	list, err := ParseThresholds(hard, "", "", reclaim)
	assert.NoError(t, err)
	return metThreshold{Threshold: list[0], observation: observation{Signal: list[0].Signal, Available: available, Capacity: capacity}}
}

// EV-13: what is missing: to the threshold first, then to the minimum reclaim.
func TestMissing(t *testing.T) {
	for _, tc := range []struct {
		reclaim   string
		available uint64
		want      uint64
	}{
		{"", 30, 70},
		{"", 99, 1},
		{"", 100, 0},
		{"", 150, 0},
		{"nodefs.available=50", 30, 70},
		{"nodefs.available=50", 100, 50},
		{"nodefs.available=50", 149, 1},
		{"nodefs.available=50", 151, 0},
	} {
		assert.Equal(t, tc.want, metBy(t, "nodefs.available<100", tc.reclaim, tc.available, 1000).missing(), "%+v", tc)
	}
}

// EV-13: whose eviction can help, in which order.
func TestWorthwhile(t *testing.T) {
	short := metBy(t, "nodefs.available<2000", "", 1000, 10000) // of 1000
	stalls := metBy(t, "memory.psi.full.avg10>20%", "", 0, 0)
	for name, tc := range map[string]struct {
		m      metThreshold
		used   []uint64
		coming uint64
		want   []uint64
		why    string
	}{
		"nobody is known":                     {m: short, why: noFigures},
		"one uses it":                         {m: short, used: []uint64{1000}, want: []uint64{1000}},
		"one uses less":                       {m: short, used: []uint64{999}, why: tooLittle},
		"all together use it":                 {m: short, used: []uint64{400, 600}, want: []uint64{400, 600}},
		"with what is on its way":             {m: short, used: []uint64{400}, coming: 600, want: []uint64{400}},
		"and that is not enough":              {m: short, used: []uint64{400}, coming: 599, why: tooLittle},
		"a hundredth is something":            {m: short, used: []uint64{10, 1000}, want: []uint64{10, 1000}},
		"a hundredth goes before less":        {m: short, used: []uint64{9, 10, 1000}, want: []uint64{10, 1000, 9}},
		"less is spared":                      {m: short, used: []uint64{9, 8, 1000, 20}, want: []uint64{1000, 20, 9, 8}},
		"many with next to nothing":           {m: short, used: []uint64{9, 9}, coming: 5000, why: tooLittle},
		"more than can be counted":            {m: short, used: []uint64{math.MaxUint64, 9, math.MaxUint64}, want: []uint64{math.MaxUint64, math.MaxUint64, 9}},
		"who stalls a tenth of the worst":     {m: stalls, used: []uint64{800, 8000}, want: []uint64{800, 8000}},
		"who stalls less is spared":           {m: stalls, used: []uint64{799, 8000}, want: []uint64{8000, 799}},
		"nobody who stalls":                   {m: stalls, used: []uint64{0, 0}, why: tooLittle},
		"nothing is missing, nothing is used": {m: metBy(t, "nodefs.available<2000", "", 2000, 10000), used: []uint64{0}, why: tooLittle},
	} {
		t.Run(name, func(t *testing.T) {
			var ranked []Candidate
			for _, n := range tc.used {
				ranked = append(ranked, Candidate{Usage: n})
			}
			victims, why := effective(tc.m, ranked, tc.coming)
			assert.Equal(t, tc.why, why)
			var got []uint64
			for _, c := range victims {
				got = append(got, c.Usage)
			}
			assert.Equal(t, tc.want, got)
			for i, n := range tc.used {
				assert.Equal(t, n, ranked[i].Usage, "the order that it was given stays")
			}
		})
	}
}

// EV-13: an eviction helped if a tenth of what the pod used came back, to the node
// or to other pods.
func TestEffectShows(t *testing.T) {
	e := effect{signal: MemoryAvailable, pod: "gone", available: 1000, others: 500, used: 100}
	for name, tc := range map[string]struct {
		available uint64
		others    []uint64
		want      bool
	}{
		"all of it":               {1100, []uint64{500}, true},
		"a tenth of it":           {1010, []uint64{500}, true},
		"less than a tenth":       {1009, []uint64{500}, false},
		"nothing":                 {1000, []uint64{500}, false},
		"there is less":           {900, []uint64{500}, false},
		"others have it":          {1000, []uint64{300, 210}, true},
		"others have taken more":  {700, []uint64{810}, true},
		"others have given it up": {1009, []uint64{100, 400}, false},
		"others went too":         {1300, []uint64{300}, true},
		"others alone gave":       {1200, []uint64{300}, false},
	} {
		u := &runtime.NodeUsage{Memory: runtime.MemoryUsage{At: time.Now(), Capacity: 10000, WorkingSet: 10000 - tc.available}}
		for i, n := range append(tc.others, 77) {
			uid := types.UID(rune('a' + i))
			if n == 77 {
				uid = "gone" // it is listed still, and does not count
			}
			u.Pods = append(u.Pods, runtime.PodUsage{UID: uid, Memory: runtime.MemoryUsage{At: time.Now(), WorkingSet: n}})
		}
		assert.Equal(t, tc.want, e.isVisible(u), name)
	}
	assert.False(t, e.isVisible(&runtime.NodeUsage{}), "nothing is known")
}

// EV-13: how long an eviction has to show.
func TestEffect_TimeoutQuadruples(t *testing.T) {
	for withoutEffect, want := range map[int]time.Duration{0: 10 * time.Second, 1: 40 * time.Second, 2: 160 * time.Second, 6: 40960 * time.Second} {
		e := effect{withoutEffect: withoutEffect}
		assert.Equal(t, want, e.timeout())
	}
	e := effect{withoutEffect: 1000}
	assert.Greater(t, e.timeout(), 1000*time.Hour, "it does not run over")
}

// EV-13: evictions are judged with those for the same condition; pressure by itself.
func TestJudgedWith(t *testing.T) {
	for _, s := range Signals() {
		f, _ := infoFor(s)
		want := string(s)
		if !f.pressure {
			want = string(f.condition)
		}
		assert.Equal(t, want, effectGroup(s))
		assert.Equal(t, f.condition, conditionOf(s))
	}
	assert.Equal(t, effectGroup(NodeFSAvailable), effectGroup(ImageFSInodesFree))
	assert.NotEqual(t, effectGroup(MemoryAvailable), effectGroup(MemoryPSISome))
}

// EV-5: the order, field by field, and the message that tells of it.
func TestCompare(t *testing.T) {
	pod := func(uid types.UID) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}} }
	base := Candidate{Pod: pod("m"), Usage: 100, Request: 100, Priority: 5}
	first := map[string]func(*Candidate){
		"above its request":   func(c *Candidate) { c.Usage = 101 },
		"lower priority":      func(c *Candidate) { c.Priority = 4 },
		"nearer its request":  func(c *Candidate) { c.Request = 101; c.Usage = 101 },
		"the smaller UID":     func(c *Candidate) { c.Pod = pod("l") },
		"and far above what ": func(c *Candidate) { c.Usage, c.Request = math.MaxUint64, 1 },
	}
	for name, change := range first {
		c := base
		change(&c)
		if name == "nearer its request" {
			assert.Zero(t, compare(c, base), name)
			continue
		}
		assert.Negative(t, compare(c, base), name)
		assert.Positive(t, compare(base, c), name)
	}
	critical := base
	critical.Critical = true
	critical.Usage, critical.Priority = 1000, -10
	assert.Positive(t, compare(critical, base))
	assert.Equal(t, "used 100 of 100 requested", base.usageText())
	assert.Equal(t, "waited 12.05% of the time", Candidate{Usage: 1205, Stalled: true}.usageText())
}
