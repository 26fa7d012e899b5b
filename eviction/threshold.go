package eviction

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// DefaultHardThresholds are the hard thresholds of a node that names none.
const DefaultHardThresholds = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"

// None is written in the place of thresholds to say that there are none.
const None = "none"

// Threshold is a bound on a signal.
type Threshold struct {
	Signal Signal
	Value  ThresholdValue
	// GracePeriod is how long a soft threshold must be crossed without a break
	// before it counts. Zero: it is a hard one.
	GracePeriod time.Duration
	// MinReclaim is how much more must be left than Value says before a
	// threshold that has been acted on counts as resolved.
	MinReclaim ThresholdValue
}

// IsHard reports whether the threshold acts at once.
func (t Threshold) IsHard() bool { return t.GracePeriod == 0 }

// String returns the threshold as it is written.
func (t Threshold) String() string {
	f, _ := infoFor(t.Signal)
	if f.pressure {
		return string(t.Signal) + ">" + t.Value.String()
	}
	return string(t.Signal) + "<" + t.Value.String()
}

// ThresholdValue is an amount or a percentage of what there is.
type ThresholdValue struct {
	Quantity   resource.Quantity // counts if Percent is zero
	Percentage float64
}

// Of returns the amount that v comes to where there is that capacity.
func (v ThresholdValue) Of(capacity uint64) uint64 {
	if v.Percentage > 0 {
		return uint64(v.Percentage / 100 * float64(capacity))
	}
	return uint64(max(v.Quantity.Value(), 0))
}

// IsZero reports whether v is nothing.
func (v ThresholdValue) IsZero() bool { return v.Percentage == 0 && v.Quantity.IsZero() }

// String returns the value as it is written.
func (v ThresholdValue) String() string {
	if v.Percentage > 0 {
		return strconv.FormatFloat(v.Percentage, 'f', -1, 64) + "%"
	}
	return v.Quantity.String()
}

// ParseThresholds reads thresholds as a kubelet's flags write them: hard and
// soft ones as "memory.available<100Mi,nodefs.available<10%", the grace periods
// of the soft ones as "memory.available=1m30s", and minimum reclaims as
// "memory.available=50Mi". It tells all faults at once, each with the
// expression that it is about.
//
// As with the kubelet, thresholds of 0% and 100% mean that the signal is not
// watched and are left out, a grace period of a signal that has no soft threshold
// is for nothing, and one of 0 makes the threshold a hard one.
func ParseThresholds(hard, soft, softGrace, minReclaim string) ([]Threshold, error) {
	graces, err1 := parsePairs("eviction-soft-grace-period", softGrace, parseGrace)
	reclaims, err2 := parsePairs("eviction-minimum-reclaim", minReclaim, parseReclaim)
	hards, err3 := parseList("eviction-hard", hard)
	softs, err4 := parseList("eviction-soft", soft)
	errs := []error{err1, err2, err3, err4}
	for i := range softs {
		grace, ok := graces[softs[i].Signal]
		if !ok && err1 == nil {
			errs = append(errs, fmt.Errorf("eviction-soft: %q has no grace period", softs[i]))
		}
		softs[i].GracePeriod = grace
	}
	out := append(hards, softs...)
	for i := range out {
		out[i].MinReclaim = reclaims[out[i].Signal]
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	kept := out[:0]
	for _, t := range out {
		if f, _ := infoFor(t.Signal); !f.pressure && (t.Value.Percentage >= 100 || t.Value.IsZero()) {
			continue
		}
		kept = append(kept, t)
	}
	return kept, nil
}

// parseList reads expressions, each signal at most once.
func parseList(flag, list string) ([]Threshold, error) {
	if list = strings.TrimSpace(list); list == "" || list == None {
		return nil, nil
	}
	var out []Threshold
	var errs []error
	seen := make(map[Signal]bool)
	for expr := range strings.SplitSeq(list, ",") {
		t, err := parseThreshold(strings.TrimSpace(expr))
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", flag, err))
		case seen[t.Signal]:
			errs = append(errs, fmt.Errorf("%s: %q: %s has a threshold already", flag, expr, t.Signal))
		default:
			seen[t.Signal] = true
			out = append(out, t)
		}
	}
	return out, errors.Join(errs...)
}

// parseThreshold reads one expression.
func parseThreshold(expr string) (Threshold, error) {
	at := strings.IndexAny(expr, "<>")
	if at < 0 {
		return Threshold{}, fmt.Errorf("%q: is not written as signal<value", expr)
	}
	signal := Signal(strings.TrimSpace(expr[:at]))
	f, ok := infoFor(signal)
	if !ok {
		return Threshold{}, fmt.Errorf("%q: unknown signal %q", expr, string(signal))
	}
	if f.pressure != (expr[at] == '>') {
		want := "<"
		if f.pressure {
			want = ">"
		}
		return Threshold{}, fmt.Errorf("%q: a threshold on %s is written with %s", expr, signal, want)
	}
	value, err := parseValue(strings.TrimSpace(expr[at+1:]))
	if err != nil {
		return Threshold{}, fmt.Errorf("%q: %w", expr, err)
	}
	switch {
	case f.pressure && value.Percentage == 0 && !value.Quantity.IsZero():
		return Threshold{}, fmt.Errorf("%q: pressure is a percentage", expr)
	case f.pressure && (value.IsZero() || value.Percentage >= 100):
		return Threshold{}, fmt.Errorf("%q: pressure must be above 0%% and below 100%%", expr)
	case value.percentOnly():
		return Threshold{Signal: signal, Value: value}, nil
	case value.Quantity.Sign() <= 0:
		return Threshold{}, fmt.Errorf("%q: the value must be above 0", expr)
	}
	return Threshold{Signal: signal, Value: value}, nil
}

// percentOnly reports whether v was written as a percentage; 0% is one, and
// has the zero Quantity, whose format is empty.
func (v ThresholdValue) percentOnly() bool { return v.Percentage > 0 || v.Quantity.Format == "" }

// parseValue reads an amount or a percentage.
func parseValue(s string) (ThresholdValue, error) {
	if p, ok := strings.CutSuffix(s, "%"); ok {
		n, err := strconv.ParseFloat(p, 64)
		if err != nil || n != n {
			return ThresholdValue{}, fmt.Errorf("%q is no percentage", s)
		}
		if n < 0 || n > 100 {
			return ThresholdValue{}, fmt.Errorf("%q is not between 0%% and 100%%", s)
		}
		return ThresholdValue{Percentage: n}, nil
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return ThresholdValue{}, fmt.Errorf("%q is no quantity", s)
	}
	return ThresholdValue{Quantity: q}, nil
}

// parsePairs reads signal=value pairs, each signal at most once.
func parsePairs[T any](flag, list string, parse func(Signal, string) (T, error)) (map[Signal]T, error) {
	out := make(map[Signal]T)
	if list = strings.TrimSpace(list); list == "" {
		return out, nil
	}
	var errs []error
	for expr := range strings.SplitSeq(list, ",") {
		name, value, ok := strings.Cut(expr, "=")
		signal := Signal(strings.TrimSpace(name))
		_, known := infoFor(signal)
		_, twice := out[signal]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%s: %q: is not written as signal=value", flag, expr))
		case !known:
			errs = append(errs, fmt.Errorf("%s: %q: unknown signal %q", flag, expr, string(signal)))
		case twice:
			errs = append(errs, fmt.Errorf("%s: %q: %s is there already", flag, expr, signal))
		default:
			v, err := parse(signal, strings.TrimSpace(value))
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %q: %w", flag, expr, err))
			}
			out[signal] = v
		}
	}
	return out, errors.Join(errs...)
}

func parseGrace(_ Signal, s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration", s)
	}
	if d < 0 {
		return 0, errors.New("the grace period must not be negative")
	}
	return d, nil
}

func parseReclaim(signal Signal, s string) (ThresholdValue, error) {
	v, err := parseValue(s)
	if err != nil {
		return ThresholdValue{}, err
	}
	if v.Quantity.Sign() < 0 {
		return ThresholdValue{}, errors.New("the minimum reclaim must not be negative")
	}
	if f, _ := infoFor(signal); f.pressure {
		return ThresholdValue{}, errors.New("pressure cannot be reclaimed")
	}
	return v, nil
}
