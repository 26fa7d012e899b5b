package eviction

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Reasons in conditions, events and logs for which no pod is evicted although a
// threshold is met. They are constant, so that repeated events are aggregated.
const (
	noPod     = "there is no pod that may be evicted"
	noFigures = "the usage of the pods is unknown"
	tooLittle = "the pods that may be evicted use less than the missing amount"
	noEffect  = "the last eviction had no effect and the next one is postponed"
)

// minShare is the fraction of the missing amount that a pod has to use to be worth an
// eviction: one hundredth.
const minShare = 100

// missing returns how much has to be freed until the threshold is no longer met or, if
// it is not, until its minimum reclaim is reached. It is pure.
func (m metThreshold) missing() uint64 {
	bound := m.Value.Of(m.observation.Capacity)
	if m.observation.Available >= bound {
		bound += m.MinReclaim.Of(m.observation.Capacity)
	}
	return bound - min(m.observation.Available, bound)
}

// effective returns the ranked pods with those whose eviction can have an effect in
// front, or why there is none. Together with the usage of pods that are being evicted
// (expected), they must use the missing amount: otherwise something else uses it, and
// all of them would be evicted in vain. Pods that use almost nothing of it come last,
// and so do those that stall much less than the worst one. It is pure.
func effective(m metThreshold, ranked []Candidate, expected uint64) (victims []Candidate, reason string) {
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
		if sumOf(all, expected) < missing {
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

// sumOf adds without overflow.
func sumOf(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// usedBy returns the sum of the known usage, of the signal's resource, of the pods for
// which include returns true.
func usedBy(s Signal, u *runtime.NodeUsage, include func(types.UID) bool) (sum uint64) {
	f, _ := infoFor(s)
	l := layoutOf(u)
	for i := range u.Pods {
		if !include(u.Pods[i].UID) {
			continue
		}
		if used, known := usageOf(s, f, &u.Pods[i], l, time.Time{}); known {
			sum = sumOf(sum, used)
		}
	}
	return sum
}

// effect is the state before the last eviction, by which its effect is judged.
type effect struct {
	signal        Signal
	pod           types.UID
	available     uint64
	others        uint64    // usage of all other pods
	used          uint64    // usage of the evicted pod
	deadline      time.Time // for the effect to become visible; zero: nothing to judge
	withoutEffect int       // consecutive evictions that had none
}

// effectTimeout is how long an eviction has until its effect must be visible. It
// quadruples after each one without effect, so that not all pods are evicted one by
// one for usage that is not theirs: the seventh in a row is some hours away.
const effectTimeout = 10 * time.Second

func (e *effect) timeout() time.Duration { return effectTimeout << min(2*e.withoutEffect, 20) }

// isVisible reports whether at least a tenth of the usage of the evicted pod became
// available on the node, or was taken by the other pods. It is pure.
func (e *effect) isVisible(u *runtime.NodeUsage) bool {
	o, ok := observe(u)[e.signal]
	if !ok {
		return false
	}
	others := usedBy(e.signal, u, func(uid types.UID) bool { return uid != e.pod })
	gain := float64(o.Available) - float64(e.available) + float64(others) - float64(e.others)
	return gain*10 >= float64(e.used)
}

// effectGroup returns the key under which the effects of evictions are judged together:
// the node condition or, for pressure, the signal itself.
func effectGroup(s Signal) string {
	f, _ := infoFor(s)
	if f.pressure {
		return string(s)
	}
	return string(f.condition)
}

// conditionOf returns the node condition of a signal, "" for none.
func conditionOf(s Signal) corev1.NodeConditionType {
	f, _ := infoFor(s)
	return f.condition
}
