package kubeapi

import (
	"context"
	"time"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/stats"
)

// Bounds of the time between two measurements of which a rate is made.
const (
	minRateTime = time.Second
	maxRateTime = 2 * time.Minute
)

// meter measures usage with CPU rates, which not all runtimes report: like metrics-server
// it computes them from two measurements.
type meter struct {
	measure func(context.Context) (stats.Summary, error)

	measuring slot // guards samples
	samples   map[rateKey]rateSample
}

// rateKey is a container of a pod.
type rateKey struct{ uid, container string }

// rateSample is the CPU time of a container at a time.
type rateSample struct {
	at     time.Time
	used   uint64
	window time.Duration // of rate
	rate   *uint64       // nil: not known yet
}

// summary measures now and, if there is no recent measurement, again after a second.
func (m *meter) summary(ctx context.Context) (stats.Summary, map[rateKey]time.Duration, error) {
	if err := m.measuring.acquire(ctx); err != nil {
		return stats.Summary{}, nil, err
	}
	defer m.measuring.release()
	s, err := m.measure(ctx)
	if err != nil {
		return s, nil, err
	}
	if m.add(&s) {
		return s, m.windows(), nil
	}
	if err := sleep.For(ctx, minRateTime); err != nil {
		return s, nil, err
	}
	if s, err = m.measure(ctx); err != nil {
		return s, nil, err
	}
	m.add(&s)
	return s, m.windows(), nil
}

// add sets the rates that are missing and remembers the measurement. It returns false if
// one is not known yet.
func (m *meter) add(s *stats.Summary) bool {
	complete := true
	samples := map[rateKey]rateSample{}
	for i := range s.Pods {
		p := &s.Pods[i]
		for j := range p.Containers {
			c := p.Containers[j].CPU
			if c == nil || c.UsageNanoCores != nil || c.UsageCoreNanoSeconds == nil {
				continue
			}
			key := rateKey{p.PodRef.UID, p.Containers[j].Name}
			samples[key] = nextSample(m.samples[key], time.Now(), *c.UsageCoreNanoSeconds)
			c.UsageNanoCores = samples[key].rate
			complete = complete && c.UsageNanoCores != nil
		}
	}
	m.samples = samples
	return complete
}

// nextSample returns the sample after last.
func nextSample(last rateSample, now time.Time, used uint64) rateSample {
	since := now.Sub(last.at)
	switch {
	case last.at.IsZero(), since > maxRateTime, used < last.used: // a restarted container counts from zero
		return rateSample{at: now, used: used}
	case since < minRateTime:
		return last // its rate, if it has one
	}
	rate := uint64(float64(used-last.used) / since.Seconds())
	return rateSample{at: now, used: used, window: since, rate: &rate}
}

func (m *meter) windows() map[rateKey]time.Duration {
	all := map[rateKey]time.Duration{}
	for key, s := range m.samples {
		all[key] = s.window
	}
	return all
}
