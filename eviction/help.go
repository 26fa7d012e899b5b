package eviction

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Why nobody is evicted though a threshold is met, as conditions and events tell
// it. The words are the same each time, so that events are counted and not told
// one by one.
const (
	noPod     = "there is no pod that may be evicted"
	noFigures = "what the pods use is not known"
	tooLittle = "the pods that may be evicted use less than what is missing"
	noEffect  = "the last eviction did not help, and the next one is put off"
)

// minShare is the part of what is missing that a pod has to use to be worth an
// eviction: a hundredth.
const minShare = 100

// missing is how much more there has to be for the threshold not to be met, or,
// once that is reached, for the minimum reclaim. It is pure.
func (m metThreshold) missing() uint64 {
	bound := m.Value.Of(m.observation.Capacity)
	if m.observation.Available >= bound {
		bound += m.MinReclaim.Of(m.observation.Capacity)
	}
	return bound - min(m.observation.Available, bound)
}

// worthwhile returns the ranked pods with the first whose eviction can help in front,
// or why there is none. All together they have to use what is missing, less what
// pods on their way out will give back (coming): else somebody else uses it, and
// all of them would go for nothing. Those that use next to nothing of it come
// last, and so do those that stall much less than the worst. It is pure.
func worthwhile(m metThreshold, ranked []Candidate, coming uint64) (victims []Candidate, why string) {
	if len(ranked) == 0 {
		return nil, noFigures
	}
	var all, most uint64
	for _, c := range ranked {
		all = sumOf(all, c.Usage)
		most = max(most, c.Usage)
	}
	least := most / 10
	if f, _ := infoFor(m.Signal); !f.pressure {
		missing := m.missing()
		if sumOf(all, coming) < missing {
			return nil, tooLittle
		}
		least = missing / minShare
	}
	victims = slices.Clone(ranked)
	slices.SortStableFunc(victims, func(a, b Candidate) int { return boolOrder(a.Usage >= least, b.Usage >= least) })
	if first := victims[0].Usage; first == 0 || first < least {
		return nil, tooLittle
	}
	return victims, ""
}

// sumOf adds without running over.
func sumOf(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// usedBy adds up what the pods use of what the signal is about, as far as it is
// known, of those that which picks.
func usedBy(s Signal, u *runtime.NodeUsage, which func(types.UID) bool) (sum uint64) {
	f, _ := infoFor(s)
	l := layoutOf(u)
	for i := range u.Pods {
		if !which(u.Pods[i].UID) {
			continue
		}
		if used, known := usageOf(s, f, &u.Pods[i], l, time.Time{}); known {
			sum = sumOf(sum, used)
		}
	}
	return sum
}

// effect is what the last eviction for a threshold is judged by.
type effect struct {
	signal Signal
	pod    types.UID
	left   uint64    // there was then
	others uint64    // what all other pods used then
	used   uint64    // what the evicted pod used
	until  time.Time // it has until then to show; zero: no eviction to judge
	vain   int       // evictions in a row that did not show
}

// testTimeout is how long an eviction has to show an effect. It is four times as long
// after each one that has not shown any, so that pods do not all go, one by one, for
// what somebody else takes: the seventh in a row is some hours away.
const testTimeout = 10 * time.Second

func (e *effect) patience() time.Duration { return testTimeout << min(2*e.vain, 20) }

// shows reports whether at least a tenth of what the evicted pod used came back: to
// the node, or to the other pods, which use that much more now. It is pure.
func (e *effect) shows(u *runtime.NodeUsage) bool {
	o, ok := observe(u)[e.signal]
	if !ok {
		return false
	}
	others := usedBy(e.signal, u, func(uid types.UID) bool { return uid != e.pod })
	gain := float64(o.Available) - float64(e.left) + float64(others) - float64(e.others)
	return gain*10 >= float64(e.used)
}

// judgedWith is what evictions for a threshold are judged together with: those for
// the same node condition, and for pressure each signal alone.
func judgedWith(s Signal) string {
	f, _ := infoFor(s)
	if f.pressure {
		return string(s)
	}
	return string(f.condition)
}

// conditionOf is the node condition of a signal, "" for none.
func conditionOf(s Signal) corev1.NodeConditionType {
	f, _ := infoFor(s)
	return f.condition
}
