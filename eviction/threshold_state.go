package eviction

import (
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

// observation is the measurement of one signal.
type observation struct {
	Signal              Signal
	Available, Capacity uint64        // of signals of available resources
	Percent             float64       // of signals of pressure: the kernel's avg10
	Waited              time.Duration // of pressure: total time that tasks waited since boot; zero: unknown
	At                  time.Time
}

// String returns the available amount or the pressure in the form used in messages.
func (o observation) String() string {
	f, _ := infoFor(o.Signal)
	if f.pressure {
		return strconv.FormatFloat(o.Percent, 'f', 2, 64) + "%"
	}
	return amount(f.resource, o.Available)
}

// amount formats bytes with binary suffixes and other amounts with decimal ones.
func amount(name corev1.ResourceName, n uint64) string {
	format := resource.BinarySI
	if name == resourceInodes || name == resourcePids {
		format = resource.DecimalSI
	}
	return resource.NewQuantity(int64(min(n, 1<<63-1)), format).String()
}

// observe returns the observations contained in u. Unknown signals are left out.
func observe(u *runtime.NodeUsage) map[Signal]observation {
	out := make(map[Signal]observation)
	for _, s := range Signals() {
		f, _ := infoFor(s)
		o := observation{Signal: s}
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

// isMet reports whether the observation meets t or, with reclaim set, whether MinReclaim
// has not been reached yet.
func (t Threshold) isMet(o observation, reclaim bool) bool {
	if f, _ := infoFor(t.Signal); f.pressure {
		return o.Percent > t.Value.Percentage
	}
	bound := t.Value.Of(o.Capacity)
	if bound >= o.Capacity {
		return false
	}
	if reclaim {
		bound = min(sumOf(bound, t.MinReclaim.Of(o.Capacity)), o.Capacity-1)
	}
	return o.Available < bound
}

// isImpossible reports whether the threshold is not below the capacity. Such a threshold
// would always be met, whichever pods are evicted, and is ignored.
func (t Threshold) isImpossible(o observation) bool {
	f, _ := infoFor(t.Signal)
	return !f.pressure && t.Value.Of(o.Capacity) >= o.Capacity
}

// thresholdState is the state of all thresholds between measurements. It has no lock:
// one goroutine owns it.
type thresholdState struct {
	thresholds []Threshold
	transition time.Duration

	metSince       map[int]time.Time                      // by threshold: met without interruption since
	active         map[int]bool                           // by threshold: was due and is not resolved yet
	returned       map[int]bool                           // by threshold: update has returned it since it is active
	lastMet        map[corev1.NodeConditionType]time.Time // by condition: threshold last met
	stalls         map[int]*stallBase                     // by threshold on pressure that was met at the last eviction
	lastEvictionAt time.Time                              // start of the last eviction: older observations of pods do not count
	evictedAt      time.Time                              // end of the last eviction
	lastActionAt   time.Time                              // start of the last eviction or reclaim: older observations of the node do not count
}

func newState(thresholds []Threshold, transition time.Duration) *thresholdState {
	return &thresholdState{
		thresholds: thresholds, transition: transition,
		metSince: make(map[int]time.Time), active: make(map[int]bool), returned: make(map[int]bool),
		lastMet: make(map[corev1.NodeConditionType]time.Time), stalls: make(map[int]*stallBase),
	}
}

// metThreshold is a threshold that requires action, with the observation that met it.
type metThreshold struct {
	Threshold
	observation observation
	isNew       bool // update has not returned it before since it is met
}

// update processes observations. It returns the thresholds that require action, the
// most urgent first, and the next end of a grace period or a condition, or zero.
func (s *thresholdState) update(observed map[Signal]observation, now time.Time) (due []metThreshold, next time.Time) {
	for i, t := range s.thresholds {
		o := observed[t.Signal]
		if !t.isMet(o, s.active[i]) {
			// An unknown signal meets no threshold and interrupts a grace period.
			delete(s.metSince, i)
			delete(s.active, i)
			delete(s.returned, i)
			delete(s.stalls, i)
			continue
		}
		if _, ok := s.metSince[i]; !ok {
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
		if at, continues := s.stallContinues(i, o); !continues {
			next = earlier(next, at)
			continue
		}
		due = append(due, metThreshold{t, o, !s.returned[i]})
		s.returned[i] = true
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

// resetStalls starts judging pressure from the end of an eviction.
func (s *thresholdState) resetStalls(evictedAt time.Time) {
	s.evictedAt = evictedAt
	for i, t := range s.thresholds {
		if f, _ := infoFor(t.Signal); f.pressure {
			s.stalls[i] = &stallBase{}
		}
	}
}

// stallContinues reports whether a threshold that is met requires action. One on
// pressure does only if tasks have waited since the last eviction; otherwise
// stallContinues returns when to check next.
func (s *thresholdState) stallContinues(i int, o observation) (at time.Time, continues bool) {
	b := s.stalls[i]
	switch {
	case b == nil:
		return time.Time{}, true
	case o.At.Before(s.evictedAt):
		return o.At.Add(stallWindow), false
	case b.at.IsZero():
		*b = stallBase{at: o.At, percent: o.Percent, total: o.Waited}
	}
	continues, at = b.continues(o, s.thresholds[i].Value.Percentage)
	return at, continues
}

// isActive reports whether a threshold of an effectGroup is active.
func (s *thresholdState) isActive(group string) bool {
	for i, t := range s.thresholds {
		if s.active[i] && effectGroup(t.Signal) == group {
			return true
		}
	}
	return false
}

// conditions returns the node conditions that are true: those with a threshold that was
// met within the transition period.
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

// boolOrder compares with true first.
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
