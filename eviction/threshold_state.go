package eviction

import (
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

// Observation is what was measured of one signal.
type Observation struct {
	Signal              Signal
	Available, Capacity uint64        // of signals that tell what is left
	Percent             float64       // of signals that tell pressure: the kernel's average
	Waited              time.Duration // of those: for how long tasks waited since the machine started; zero: not known
	At                  time.Time
}

// String returns what there is, as messages tell it.
func (o Observation) String() string {
	f, _ := infoFor(o.Signal)
	if f.pressure {
		return strconv.FormatFloat(o.Percent, 'f', 2, 64) + "%"
	}
	return amount(f.resource, o.Available)
}

// amount writes bytes as multiples of 1024 and all else as a plain number.
func amount(name corev1.ResourceName, n uint64) string {
	format := resource.BinarySI
	if name == resourceInodes || name == resourcePids {
		format = resource.DecimalSI
	}
	return resource.NewQuantity(int64(min(n, 1<<63-1)), format).String()
}

// observe returns the observations that usage has. What is not known is not
// among them.
func observe(u *runtime.NodeUsage) map[Signal]Observation {
	out := make(map[Signal]Observation)
	for _, s := range Signals() {
		f, _ := infoFor(s)
		o := Observation{Signal: s}
		if f.pressure {
			var stall runtime.PSIData
			stall, o.At = f.stall(u)
			o.Percent, o.Waited = stall.Avg10, time.Duration(min(stall.Total, 1<<53))*time.Microsecond
		} else {
			o.Available, o.Capacity, o.At = f.read(u)
		}
		if !o.At.IsZero() {
			out[s] = o
		}
	}
	return out
}

// isMet reports whether the observation is on the wrong side of t or, with
// more set, not yet as far on the right side as MinReclaim asks.
func (t Threshold) isMet(o Observation, more bool) bool {
	if f, _ := infoFor(t.Signal); f.pressure {
		return o.Percent > t.Value.Percentage
	}
	bound := t.Value.Of(o.Capacity)
	if bound >= o.Capacity {
		return false
	}
	if more {
		bound = min(sumOf(bound, t.MinReclaim.Of(o.Capacity)), o.Capacity-1)
	}
	return o.Available < bound
}

// impossible reports whether there is not even as much as the threshold wants to be
// left. Such a threshold would be met for ever, whoever goes, and is not held to.
func (t Threshold) impossible(o Observation) bool {
	f, _ := infoFor(t.Signal)
	return !f.pressure && t.Value.Of(o.Capacity) >= o.Capacity
}

// thresholdState is what is remembered from look to look. It has no lock: one goroutine
// owns it.
type thresholdState struct {
	thresholds []Threshold
	transition time.Duration

	metSince       map[int]time.Time                      // by threshold: crossed without a break since
	active         map[int]bool                           // by threshold: counted once and is not resolved yet
	lastMet        map[corev1.NodeConditionType]time.Time // by condition: last crossed
	stalls         map[int]*stallBase                     // by threshold on pressure that was crossed at the last eviction
	lastEvictionAt time.Time                              // start of the last eviction: pods' figures from before do not count
	gone           time.Time                              // when it was over
	lastActionAt   time.Time                              // start of the last eviction or reclaim: the node's figures from before do not count
}

func newState(thresholds []Threshold, transition time.Duration) *thresholdState {
	return &thresholdState{
		thresholds: thresholds, transition: transition,
		metSince: make(map[int]time.Time), active: make(map[int]bool),
		lastMet: make(map[corev1.NodeConditionType]time.Time), stalls: make(map[int]*stallBase),
	}
}

// metThreshold is a threshold that counts, with what it was held against.
type metThreshold struct {
	Threshold
	observation Observation
}

// update takes up observations and returns the thresholds that call for action,
// the most urgent first, and when to look again at the latest for a grace
// period or a condition that ends; zero: for none.
func (s *thresholdState) update(seen map[Signal]Observation, now time.Time) (due []metThreshold, next time.Time) {
	for i, t := range s.thresholds {
		o, ok := seen[t.Signal]
		if !ok || !t.isMet(o, s.active[i]) {
			// What is not known calls for nothing, and breaks a grace period.
			delete(s.metSince, i)
			delete(s.active, i)
			delete(s.stalls, i)
			continue
		}
		if _, before := s.metSince[i]; !before {
			s.metSince[i] = now
		}
		if f, _ := infoFor(t.Signal); f.condition != "" {
			s.lastMet[f.condition] = now
		}
		if at := s.metSince[i].Add(t.GracePeriod); at.After(now) {
			next = earlier(next, at)
			continue
		}
		s.active[i] = true
		if !current(o.At, s.lastActionAt) {
			continue
		}
		if at, again := s.stallsAgain(i, o); !again {
			next = earlier(next, at)
			continue
		}
		due = append(due, metThreshold{t, o})
	}
	for _, at := range s.lastMet {
		if end := at.Add(s.transition); end.After(now) {
			next = earlier(next, end)
		}
	}
	slices.SortStableFunc(due, func(a, b metThreshold) int {
		if d := comparePriority(a.Signal) - comparePriority(b.Signal); d != 0 {
			return d
		}
		return boolOrder(a.IsHard(), b.IsHard())
	})
	return due, next
}

// judgeStallsFrom has pressure judged from gone on, when a pod was evicted.
func (s *thresholdState) judgeStallsFrom(gone time.Time) {
	s.gone = gone
	for i, t := range s.thresholds {
		if f, _ := infoFor(t.Signal); f.pressure {
			s.stalls[i] = &stallBase{}
		}
	}
}

// stallsAgain reports whether a threshold that is crossed calls for action: one on
// pressure, only if tasks have waited since the last eviction. If not, it returns
// when to look again.
func (s *thresholdState) stallsAgain(i int, o Observation) (at time.Time, again bool) {
	b := s.stalls[i]
	switch {
	case b == nil:
		return time.Time{}, true
	case o.At.Before(s.gone):
		return o.At.Add(stallWindow), false
	case b.at.IsZero():
		*b = stallBase{at: o.At, percent: o.Percent, total: o.Waited}
	}
	again, at = b.again(o, s.thresholds[i].Value.Percentage)
	return at, again
}

// acts reports whether a threshold that is judged together with others acts.
func (s *thresholdState) acts(with string) bool {
	for i, t := range s.thresholds {
		if s.active[i] && judgedWith(t.Signal) == with {
			return true
		}
	}
	return false
}

// conditions returns the node conditions that hold: those that were breached
// within the transition period.
func (s *thresholdState) conditions(now time.Time) []corev1.NodeConditionType {
	var out []corev1.NodeConditionType
	for _, c := range conditionTypes() {
		if at, ok := s.lastMet[c]; ok && (now.Sub(at) < s.transition || at.Equal(now)) {
			out = append(out, c)
		}
	}
	return out
}

func conditionTypes() []corev1.NodeConditionType {
	return []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}
}

func comparePriority(s Signal) int { return slices.Index(Signals(), s) }

// boolOrder puts true first.
func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
