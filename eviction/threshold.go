package eviction

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// DefaultThresholds returns the hard thresholds of a kubelet without configuration:
// those of DefaultHardThresholds.
func DefaultThresholds() []Threshold {
	thresholds, _ := ParseThresholds(DefaultHardThresholds, "", "", "")
	return thresholds
}

// Threshold is a limit on a signal. Several on one signal act each by itself, such as
// a hard and a soft one.
type Threshold struct {
	Signal Signal
	Value  ThresholdValue
	// GracePeriod is how long a soft threshold must be met without interruption before
	// pods are evicted. Zero: the threshold is hard.
	GracePeriod time.Duration
	// MinReclaim is how much more than Value must be available before a threshold
	// that was acted on is resolved.
	MinReclaim ThresholdValue
}

// IsHard reports whether the threshold has no grace period.
func (t Threshold) IsHard() bool { return t.GracePeriod == 0 }

// String returns the threshold in the form that ParseThresholds reads.
func (t Threshold) String() string {
	f, _ := infoFor(t.Signal)
	if f.pressure {
		return string(t.Signal) + ">" + t.Value.String()
	}
	return string(t.Signal) + "<" + t.Value.String()
}

// check returns why the threshold is invalid.
func (t Threshold) check() error {
	f, ok := infoFor(t.Signal)
	if !ok {
		return fmt.Errorf("unknown signal %q", string(t.Signal))
	}
	if err := t.Value.check(f.pressure); err != nil {
		return err
	}
	switch r := t.MinReclaim; {
	case t.GracePeriod < 0:
		return errNegativeGracePeriod
	case f.pressure && !r.IsZero():
		return errPressureReclaim
	case r.Quantity.Sign() < 0 || r.Percentage < 0:
		return errNegativeReclaim
	case r.Percentage > 100 || math.IsNaN(r.Percentage):
		return fmt.Errorf("the minimum reclaim of %v%% is not up to 100%%", r.Percentage)
	case r.Percentage > 0 && !r.Quantity.IsZero():
		return fmt.Errorf("the minimum reclaim has %w", errTwoValues)
	}
	return nil
}

var (
	errNegativeGracePeriod = errors.New("the grace period must not be negative")
	errNegativeReclaim     = errors.New("the minimum reclaim must not be negative")
	errPressureReclaim     = errors.New("pressure cannot be reclaimed")
	errTwoValues           = errors.New("both a quantity and a percentage")
)

// ThresholdValue is a quantity or a percentage of the capacity. Only one of them is set.
type ThresholdValue struct {
	Quantity   resource.Quantity // bytes, inodes or processes
	Percentage float64           // of the capacity; of pressure: of the time
}

// Of returns the amount for a capacity.
func (v ThresholdValue) Of(capacity uint64) uint64 {
	if v.Percentage > 0 {
		return uint64(v.Percentage / 100 * float64(capacity))
	}
	return uint64(max(v.Quantity.Value(), 0))
}

// IsZero reports whether v is zero.
func (v ThresholdValue) IsZero() bool { return v.Percentage == 0 && v.Quantity.IsZero() }

// String returns the value in the form that ParseThresholds reads.
func (v ThresholdValue) String() string {
	if v.Percentage > 0 {
		return strconv.FormatFloat(v.Percentage, 'f', -1, 64) + "%"
	}
	return v.Quantity.String()
}

// check returns why the value of a threshold is invalid.
func (v ThresholdValue) check(pressure bool) error {
	between := v.Percentage > 0 && v.Percentage < 100 // false for NaN
	switch {
	case v.Percentage != 0 && !v.Quantity.IsZero():
		return fmt.Errorf("the value has %w", errTwoValues)
	case pressure && !v.Quantity.IsZero():
		return errors.New("pressure must be a percentage")
	case pressure && !between:
		return errors.New("pressure must be above 0% and below 100%")
	case v.Percentage == 0 && v.Quantity.Sign() <= 0:
		return errors.New("the value must be above 0")
	case v.Percentage != 0 && !between:
		return fmt.Errorf("percentage %v must be above 0%% and below 100%%", v.Percentage)
	}
	return nil
}

// thresholdsOf returns the thresholds of a configuration: the default ones in place of
// nil, and in addition the allocatable one that they imply.
func thresholdsOf(configured []Threshold) []Threshold {
	if configured == nil {
		configured = DefaultThresholds()
	}
	return withAllocatableMemory(configured)
}

// withAllocatableMemory adds to a hard threshold on the node's memory the same one on that
// of all pods, unless it has one: at the limit of their cgroup the kernel kills
// processes before the node is short. Where they have no limit the signal is unknown
// and the threshold has no effect.
func withAllocatableMemory(thresholds []Threshold) []Threshold {
	all := slices.Clone(thresholds)
	for _, t := range thresholds {
		if t.Signal == AllocatableMemoryAvailable {
			return slices.Clone(thresholds)
		}
		if t.Signal == MemoryAvailable && t.IsHard() {
			t.Signal = AllocatableMemoryAvailable
			all = append(all, t)
		}
	}
	return all
}
