package eviction

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// DefaultHardThresholds is the kubelet's default of its flag for hard thresholds, for
// ParseThresholds. See DefaultThresholds.
const DefaultHardThresholds = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"

// None is an empty list of hard or soft thresholds, as "" is, for flags of which ""
// means the default.
const None = "none"

// ParseThresholds parses thresholds in the form of the kubelet's flags: hard and soft
// ones as "memory.available<100Mi,nodefs.available<10%", grace periods of soft ones as
// "memory.available=1m30s", and minimum reclaims as "memory.available=50Mi". It reports
// all errors at once, each with its expression.
//
// As in the kubelet, thresholds of 0% and 100% disable the signal and are left out, a
// grace period without a soft threshold is ignored, and one of 0 makes the threshold a
// hard one. Empty entries, as after a last comma, are skipped. The result is not nil, also without thresholds.
func ParseThresholds(hard, soft, softGrace, minReclaim string) ([]Threshold, error) {
	graces, err1 := parsePairs("eviction-soft-grace-period", softGrace, parseGrace)
	reclaims, err2 := parsePairs("eviction-minimum-reclaim", minReclaim, parseReclaim)
	hards, err3 := parseList("eviction-hard", hard)
	softs, err4 := parseList("eviction-soft", soft)
	errs := []error{err1, err2, err3, err4}
	for i := range softs {
		grace, ok := graces[softs[i].Signal]
		if !ok && err1 == nil && !softs[i].Value.isOff() {
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
	kept := make([]Threshold, 0, len(out))
	for _, t := range out {
		if !t.Value.isOff() {
			kept = append(kept, t)
		}
	}
	return kept, nil
}

// parseList parses a list of expressions without duplicate signals.
func parseList(flag, list string) ([]Threshold, error) {
	if strings.TrimSpace(list) == None {
		return nil, nil
	}
	var out []Threshold
	var errs []error
	parsed := make(map[Signal]bool)
	for expr := range strings.FieldsFuncSeq(strings.TrimSpace(list), isComma) {
		t, err := parseThreshold(strings.TrimSpace(expr))
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", flag, err))
		case parsed[t.Signal]:
			errs = append(errs, fmt.Errorf("%s: %q: duplicate threshold for %s", flag, expr, t.Signal))
		default:
			parsed[t.Signal] = true
			out = append(out, t)
		}
	}
	return out, errors.Join(errs...)
}

// Operator returns what is between a signal and its value where a threshold is written: ">" for a signal of pressure, of
// which more is worse, and "<" for all others.
func (s Signal) Operator() string {
	if f, _ := infoFor(s); f.pressure {
		return ">"
	}
	return "<"
}

// parseThreshold parses one expression.
func parseThreshold(expr string) (Threshold, error) {
	at := strings.IndexAny(expr, "<>")
	if at < 0 {
		return Threshold{}, fmt.Errorf("%q: must be written as signal<value", expr)
	}
	signal := Signal(strings.TrimSpace(expr[:at]))
	f, ok := infoFor(signal)
	if !ok {
		return Threshold{}, fmt.Errorf("%q: unknown signal %q", expr, string(signal))
	}
	if want := signal.Operator(); expr[at:at+1] != want {
		return Threshold{}, fmt.Errorf("%q: a threshold on %s must be written with %s", expr, signal, want)
	}
	value, err := parseValue(strings.TrimSpace(expr[at+1:]))
	if off := value.isOff() && !f.pressure; err == nil && !off {
		err = value.check(f.pressure)
	}
	if err != nil {
		return Threshold{}, fmt.Errorf("%q: %w", expr, err)
	}
	return Threshold{Signal: signal, Value: value}, nil
}

// isOff reports whether v was written as 0% or 100%. The Quantity of a percentage has
// no format.
func (v ThresholdValue) isOff() bool {
	return v.Percentage >= 100 || v.Percentage == 0 && v.Quantity.Format == ""
}

// parseValue parses a quantity or a percentage.
func parseValue(s string) (ThresholdValue, error) {
	if p, ok := strings.CutSuffix(s, "%"); ok {
		n, err := strconv.ParseFloat(p, 64)
		if err != nil || n != n {
			return ThresholdValue{}, fmt.Errorf("invalid percentage %q", s)
		}
		if n < 0 || n > 100 {
			return ThresholdValue{}, fmt.Errorf("percentage %q must be between 0%% and 100%%", s)
		}
		return ThresholdValue{Percentage: n}, nil
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return ThresholdValue{}, fmt.Errorf("invalid quantity %q", s)
	}
	return ThresholdValue{Quantity: q}, nil
}

// isComma separates the entries of a list. As for a kubelet, one may end in a comma.
func isComma(r rune) bool { return r == ',' }

// parsePairs parses a list of signal=value pairs without duplicate signals.
func parsePairs[T any](flag, list string, parse func(Signal, string) (T, error)) (map[Signal]T, error) {
	out := make(map[Signal]T)
	var errs []error
	for expr := range strings.FieldsFuncSeq(strings.TrimSpace(list), isComma) {
		name, value, ok := strings.Cut(expr, "=")
		signal := Signal(strings.TrimSpace(name))
		_, known := infoFor(signal)
		_, duplicate := out[signal]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%s: %q: must be written as signal=value", flag, expr))
		case !known:
			errs = append(errs, fmt.Errorf("%s: %q: unknown signal %q", flag, expr, string(signal)))
		case duplicate:
			errs = append(errs, fmt.Errorf("%s: %q: duplicate signal %s", flag, expr, signal))
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
		return 0, fmt.Errorf("invalid duration %q", s)
	}
	if d < 0 {
		return 0, errNegativeGracePeriod
	}
	return d, nil
}

func parseReclaim(signal Signal, s string) (ThresholdValue, error) {
	v, err := parseValue(s)
	if err != nil {
		return ThresholdValue{}, err
	}
	if v.Quantity.Sign() < 0 {
		return ThresholdValue{}, errNegativeReclaim
	}
	if f, _ := infoFor(signal); f.pressure {
		return ThresholdValue{}, errPressureReclaim
	}
	return v, nil
}
