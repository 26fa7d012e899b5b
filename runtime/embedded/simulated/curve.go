package simulated

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// UsagePoint is the use at a time after the start.
type UsagePoint struct {
	At    time.Duration
	Bytes uint64
}

// CPUPoint is the use of processors at a time after the start.
type CPUPoint struct {
	At    time.Duration
	Milli uint64 // thousandths of a processor
}

// curve returns points of processors as points, for what is the same for all of them.
func curve(points []CPUPoint) []UsagePoint {
	var out []UsagePoint
	for _, p := range points {
		out = append(out, UsagePoint{At: p.At, Bytes: p.Milli})
	}
	return out
}

// parseUsage parses points of bytes: 10Mi, or 0s=10Mi,1m=100Mi.
func parseUsage(value string) ([]UsagePoint, error) {
	return parsePoints(value, (*resource.Quantity).Value)
}

// parseCPU parses points of processors: 250m, or 0s=50m,1m=2.
func parseCPU(value string) ([]CPUPoint, error) {
	points, err := parsePoints(value, (*resource.Quantity).MilliValue)
	var out []CPUPoint
	for _, p := range points {
		out = append(out, CPUPoint{At: p.At, Milli: p.Bytes})
	}
	return out, err
}

// parsePoints parses points whose amounts are as of says.
func parsePoints(value string, of func(*resource.Quantity) int64) ([]UsagePoint, error) {
	var out []UsagePoint
	for part := range strings.SplitSeq(value, ",") {
		at, amount, timed := strings.Cut(strings.TrimSpace(part), "=")
		var p UsagePoint
		var err error
		if !timed {
			amount = at
		} else if p.At, err = time.ParseDuration(at); err != nil {
			return nil, err
		}
		q, err := resource.ParseQuantity(amount)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", amount, err)
		}
		p.Bytes = uint64(max(0, of(&q)))
		out = append(out, p)
	}
	return out, nil
}

// at returns the use at a time after the start.
func at(points []UsagePoint, t time.Duration) uint64 {
	for i, p := range points {
		if t >= p.At {
			continue
		}
		if i == 0 {
			return p.Bytes
		}
		from := points[i-1]
		part := float64(t-from.At) / float64(p.At-from.At)
		return uint64(float64(from.Bytes) + part*(float64(p.Bytes)-float64(from.Bytes)))
	}
	if len(points) == 0 {
		return 0
	}
	return points[len(points)-1].Bytes
}

// reaches returns when the use first reaches limit.
func reaches(points []UsagePoint, limit uint64) (time.Duration, bool) {
	for i, p := range points {
		if p.Bytes < limit {
			continue
		}
		if i == 0 {
			return p.At, true
		}
		from := points[i-1]
		part := float64(limit-from.Bytes) / float64(p.Bytes-from.Bytes)
		return from.At + time.Duration(part*float64(p.At-from.At)), true
	}
	return 0, false
}

// processorTime returns the processor time that a container has used at a time after its
// start: the area below the curve.
func processorTime(points []CPUPoint, t time.Duration) time.Duration {
	if len(points) == 0 || t <= 0 {
		return 0
	}
	// Before the first point and behind the last one the use is constant.
	ends := append([]CPUPoint{{0, points[0].Milli}}, points...)
	ends = append(ends, CPUPoint{max(t, points[len(points)-1].At), points[len(points)-1].Milli})
	var sum float64
	for i, to := range ends[1:] {
		from := ends[i]
		if from.At >= t {
			break
		}
		end, milli := to.At, float64(to.Milli)
		if end > t {
			milli = float64(from.Milli) + (float64(to.Milli)-float64(from.Milli))*float64(t-from.At)/float64(to.At-from.At)
			end = t
		}
		sum += float64(end-from.At) * (float64(from.Milli) + milli) / 2 / 1000
	}
	return time.Duration(min(sum, float64(forever/2)))
}
