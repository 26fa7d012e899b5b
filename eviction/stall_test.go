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

// EV-2: how long the kernel's average takes to fall to a threshold by itself.
func TestFade(t *testing.T) {
	for _, tc := range []struct{ percent, threshold float64 }{{60, 20}, {100, 1}, {21, 20}, {99.99, 0.01}} {
		avg, took := tc.percent, time.Duration(0)
		for avg > tc.threshold {
			avg *= math.Exp(-0.2)
			took += 2 * time.Second
		}
		got := decayTime(tc.percent, tc.threshold)
		assert.GreaterOrEqual(t, got, took, "%v", tc)
		assert.LessOrEqual(t, got, took+4*time.Second, "%v", tc)
	}
	assert.Equal(t, 4*time.Second, decayTime(20, 20))
	assert.Equal(t, 4*time.Second, decayTime(10, 20))
	assert.Equal(t, 4*time.Second, decayTime(10, 0))
}

// EV-2: after an eviction, what was waited since counts, and the average once it
// would have fallen.
func TestStallBase_Continues(t *testing.T) {
	from := time.Now()
	b := stallBase{at: from, percent: 60, total: time.Hour}
	const fades = 14986 * time.Millisecond // 10 s * ln 3 + 4 s
	for _, tc := range []struct {
		name   string
		since  time.Duration
		waited time.Duration
		due    bool
		next   time.Duration
	}{
		{"too soon to say", 3999 * time.Millisecond, 3 * time.Second, false, 4 * time.Second},
		{"a fifth of the time", 4 * time.Second, 800 * time.Millisecond, false, 6 * time.Second},
		{"more than a fifth", 4 * time.Second, 801 * time.Millisecond, true, 0},
		{"nothing", 10 * time.Second, 0, false, 12 * time.Second},
		{"not told any more", 10 * time.Second, -time.Hour, false, 12 * time.Second},
		{"soon the average counts", 14 * time.Second, 0, false, fades},
		{"it counts now", fades + time.Millisecond, 0, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			due, next := b.continues(observation{At: from.Add(tc.since), Waited: b.total + tc.waited}, 20)
			assert.Equal(t, tc.due, due)
			if tc.due {
				assert.True(t, next.IsZero())
				return
			}
			assert.InDelta(t, tc.next.Seconds(), next.Sub(from).Seconds(), 0.001)
		})
	}
}

// EV-2: a threshold on pressure is due at once when it is met first. After an eviction
// each is judged by observations after it, until it is not met.
func TestPressureAfterAnEviction(t *testing.T) {
	thresholds, err := ParseThresholds("memory.psi.some.avg10>20%,memory.available<1Gi", "", "", "")
	assert.NoError(t, err)
	s := newState(thresholds, time.Minute)
	now := time.Now()
	observeAt := func(after time.Duration, percent float64, waited time.Duration) (due []metThreshold, next time.Time) {
		at := now.Add(after)
		return s.update(map[Signal]observation{MemoryPSISome: {Signal: MemoryPSISome, At: at, Percent: percent, Waited: time.Hour + waited}}, at)
	}
	due, _ := observeAt(0, 60, 0)
	assert.Len(t, due, 1)
	s.resetStalls(now.Add(time.Second))
	due, _ = observeAt(999*time.Millisecond, 60, 0)
	assert.Empty(t, due, "from before its end")
	due, next := observeAt(2*time.Second, 60, 0)
	assert.Empty(t, due, "it is where the rest is measured from")
	assert.Equal(t, now.Add(6*time.Second), next)
	due, _ = observeAt(6*time.Second, 50, time.Second)
	assert.Len(t, due, 1, "it goes on")
	due, _ = observeAt(7*time.Second, 10, time.Second)
	assert.Empty(t, due)
	due, _ = observeAt(8*time.Second, 30, time.Second)
	assert.Len(t, due, 1, "another stall, long after")
}

// EV-5: for pressure on memory and disks the pods' own stalls rank; where none is
// known, memory does for memory, and for a disk no pod can be chosen.
func TestRankOfPressure(t *testing.T) {
	now := time.Now()
	stall := func(some, full float64) runtime.PSIStats {
		return runtime.PSIStats{At: now, Some: runtime.PSIData{Avg10: some}, Full: runtime.PSIData{Avg10: full}}
	}
	used := func(n uint64) runtime.PodUsage {
		return runtime.PodUsage{
			Memory: runtime.MemoryUsage{At: now, WorkingSet: n}, CPU: runtime.CPUUsage{At: now, UsageNanoCores: n * 1e6, HasRate: true},
			Volumes: map[string]runtime.VolumeUsage{"v": {DiskUsage: runtime.DiskUsage{At: now, Bytes: n}}},
		}
	}
	thrash, archive, plain := used(10), used(1000), used(20)
	stalling := func() []runtime.PodUsage {
		a, b, c := thrash, archive, plain
		a.MemoryPressure, a.IOPressure = stall(80, 10), stall(70, 60)
		b.MemoryPressure, b.IOPressure = stall(5, 20), stall(0.5, 0)
		return []runtime.PodUsage{a, b, c}
	}
	for name, tc := range map[string]struct {
		signal Signal
		pods   []runtime.PodUsage
		want   []string
		usage  uint64
	}{
		"memory, some":                 {MemoryPSISome, stalling(), []string{"thrash", "archive"}, 8000},
		"memory, full":                 {MemoryPSIFull, stalling(), []string{"archive", "thrash"}, 2000},
		"io, some":                     {IOPSISome, stalling(), []string{"thrash", "archive"}, 7000},
		"io, full":                     {IOPSIFull, stalling(), []string{"thrash", "archive"}, 6000},
		"cpu goes by what is used":     {CPUPSISome, stalling(), []string{"archive", "plain", "thrash"}, 1000},
		"memory, where nothing tells":  {MemoryPSISome, []runtime.PodUsage{thrash, archive, plain}, []string{"archive", "plain", "thrash"}, 1000},
		"io, where nothing tells":      {IOPSIFull, []runtime.PodUsage{thrash, archive, plain}, nil, 0},
		"memory itself is not stalled": {MemoryAvailable, stalling(), []string{"archive", "plain", "thrash"}, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			u := &runtime.NodeUsage{Pods: tc.pods}
			var pods []*corev1.Pod
			for i, uid := range []types.UID{"thrash", "archive", "plain"} {
				u.Pods[i].UID = uid
				pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Name: string(uid)}})
			}
			ranked := Rank(tc.signal, pods, u, now)
			var got []string
			for _, c := range ranked {
				got = append(got, c.Pod.Name)
			}
			assert.Equal(t, tc.want, got)
			if len(ranked) > 0 {
				assert.Equal(t, tc.usage, ranked[0].Usage)
			}
			for _, c := range Rank(tc.signal, pods, u, now.Add(time.Nanosecond)) {
				t.Errorf("%s went on an old figure", c.Pod.Name)
			}
		})
	}
}
