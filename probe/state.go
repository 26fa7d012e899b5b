package probe

import (
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/runtime"
)

// initial is a probe's result before it has spoken: a container is taken to be
// alive and not to be ready, and whether it has started is open.
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

// add counts r, and reports whether there are enough of it to count.
func (t *thresholdCounter) add(r runtime.ProbeResult, spec *corev1.Probe) bool {
	if r != t.last {
		*t = thresholdCounter{last: r}
	}
	need := orDefault(spec.SuccessThreshold, 1)
	if r == runtime.ProbeFailure {
		need = orDefault(spec.FailureThreshold, 3)
	}
	t.run = min(t.run+1, need) // it must not overflow in a year
	return t.run >= need
}

// orDefault lets a probe be used that was given no defaults.
func orDefault(n, unset int32) int32 {
	if n <= 0 {
		return unset
	}
	return n
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

func period(spec *corev1.Probe) time.Duration  { return seconds(orDefault(spec.PeriodSeconds, 10)) }
func timeout(spec *corev1.Probe) time.Duration { return seconds(orDefault(spec.TimeoutSeconds, 1)) }

// firstSpread is the longest time for which a probe of a container that has just
// started is put off so as not to fire with others.
const firstSpread = time.Second

// first returns when a container is to be probed for the first time: when its
// initial delay is over and a part of the period on top, which share (0 to 1)
// gives. A container that has been running for long waits for a part of its whole
// period: the agent was restarted, and all its probes begin now. A start that is not
// known, or yet to come by a clock that was set back, counts as now.
func first(spec *corev1.Probe, started, now time.Time, share float64) time.Time {
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
	return at.Add(time.Duration(share * float64(spread)))
}

// following returns the next beat after now of a probe that was due before. Beats
// that a slow handler has let pass are left out.
func following(due, now time.Time, every time.Duration) time.Time {
	next := due.Add(every)
	if late := now.Sub(next); late >= 0 {
		next = next.Add(late - late%every + every)
	}
	return next
}

// phaseOffset returns a number from 0 to 1 that is the same for one probe of one pod
// whenever it is asked for, and differs between probes.
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
