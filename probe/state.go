package probe

import (
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/runtime"
)

// initial is the result of a probe before its first run: a container counts as alive and
// not ready, and whether it has started is unknown.
func initial(k ProbeType) runtime.ProbeResult {
	switch k {
	case Liveness:
		return runtime.ProbeSuccess
	case Readiness:
		return runtime.ProbeFailure
	default:
		return runtime.ProbeUnknown
	}
}

// thresholdCounter counts equal results in a row.
type thresholdCounter struct {
	last runtime.ProbeResult
	run  int32
}

// add counts r, and reports whether the threshold is met.
func (t *thresholdCounter) add(r runtime.ProbeResult, spec *corev1.Probe) bool {
	if r != t.last {
		*t = thresholdCounter{last: r}
	}
	need := orDefault(spec.SuccessThreshold, 1)
	if r == runtime.ProbeFailure {
		need = orDefault(spec.FailureThreshold, 3)
	}
	t.run = min(t.run+1, need) // bounded, so that it cannot overflow
	return t.run >= need
}

// orDefault returns the default for a field that is not set.
func orDefault(n, unset int32) int32 {
	if n <= 0 {
		return unset
	}
	return n
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

func period(spec *corev1.Probe) time.Duration  { return seconds(orDefault(spec.PeriodSeconds, 10)) }
func timeout(spec *corev1.Probe) time.Duration { return seconds(orDefault(spec.TimeoutSeconds, 1)) }

// firstSpread is the maximum delay of the first probe of a container that has just
// started; it spreads probes that would run at once.
const firstSpread = time.Second

// first returns when a container is probed for the first time: after its initial delay,
// plus a part of the spread that offset (0 to 1) selects. For a container that has run
// for longer than a period the spread is the period, because after a restart of the
// agent all probes start now. A start that is unknown or, by a clock that was set back,
// in the future counts as now.
func first(spec *corev1.Probe, started, now time.Time, offset float64) time.Time {
	every := period(spec)
	if started.IsZero() {
		started = now
	}
	at := monotonic.Past(started, now).Add(seconds(max(spec.InitialDelaySeconds, 0)))
	spread := min(every, firstSpread)
	if now.Sub(at) > every {
		at, spread = now, every
	}
	if at.Before(now) {
		at = now
	}
	return at.Add(time.Duration(offset * float64(spread)))
}

// following returns the next scheduled time after now of a probe that was due before.
// Times that have passed while a slow handler ran are skipped.
func following(due, now time.Time, every time.Duration) time.Time {
	next := due.Add(every)
	if late := now.Sub(next); late >= 0 {
		next = next.Add(late - late%every + every)
	}
	return next
}

// phaseOffset returns a number from 0 to 1 that is always the same for one probe of one
// pod, and differs between probes.
func phaseOffset(uid types.UID, container string, k ProbeType) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(uid)) // a hash never fails
	_, _ = h.Write([]byte{0, byte(k)})
	_, _ = h.Write([]byte(container))
	x := h.Sum64()
	x ^= x >> 32 // the high bits of FNV hardly differ between like inputs
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	return float64(x>>11) / (1 << 53)
}
