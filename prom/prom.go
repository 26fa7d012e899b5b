package prom

import (
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics contains the collectors of one agent. Its hooks may be called from any
// goroutine.
type Metrics struct {
	pleg     plegMetrics
	workers  workerMetrics
	status   statusMetrics
	probe    *probeMetrics
	sources  sourceMetrics
	loop     *loopMetrics
	runtime  runtimeMetrics
	eviction evictionMetrics
	images   imageMetrics
	garbage  garbageMetrics
	rotation rotationMetrics
	start    *startMetrics
	managers managerMetrics
	podsAPI  podsAPIMetrics
	storage  storageMetrics
	api      apiMetrics
	health   healthMetrics // only with RegisterSLIs
}

// New registers all metrics with reg. On error, none is registered.
func New(reg prometheus.Registerer) (*Metrics, error) {
	if reg == nil {
		return nil, errors.New("prom: nil Registerer")
	}
	m := &Metrics{
		pleg: newPleg(), workers: newWorkers(), status: newStatus(), probe: newProbe(), sources: newSources(),
		loop: newLoop(), runtime: newRuntime(), eviction: newEviction(), images: newImages(), garbage: newGarbage(),
		rotation: newRotation(), start: newStart(), managers: newManagers(), podsAPI: newPodsAPI(), storage: newStorage(), api: newAPI(), health: newHealth(),
	}
	if err := reg.Register(collector{m}); err != nil {
		return nil, fmt.Errorf("prom: register metrics: %w", err)
	}
	return m, nil
}

// collector is the prometheus.Collector of all metrics.
type collector struct{ *Metrics }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, group := range c.all() {
		group.Describe(ch)
	}
}

// Collect implements prometheus.Collector. It leaves out what RegisterProbes has registered: who scrapes both would have it twice in sums.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.probe.sweep()
	apart := c.probe.registeredApart()
	for _, group := range c.all() {
		if !slices.Contains(apart, group) {
			group.Collect(ch)
		}
	}
}

func (m *Metrics) all() []prometheus.Collector {
	var all []prometheus.Collector
	for _, group := range []interface{ all() []prometheus.Collector }{
		&m.pleg, &m.workers, &m.status, m.probe, &m.sources, m.loop, &m.runtime, &m.eviction, &m.images, &m.garbage, &m.rotation,
		m.start, &m.managers, &m.podsAPI, &m.storage, &m.api,
	} {
		all = append(all, group.all()...)
	}
	return all
}

// buckets are the bounds of a histogram, in seconds.
type buckets []float64

// quick returns buckets from 100 µs to 26 s, ops those of the kubelet for runtime
// operations, and starts those of the kubelet for pod starts.
func quick() buckets { return prometheus.ExponentialBuckets(0.0001, 4, 10) }
func ops() buckets   { return prometheus.ExponentialBuckets(0.005, 2.5, 14) }
func starts() buckets {
	return buckets{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func histogram(name, help string, b buckets) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: b})
}

func histograms(name, help string, b buckets, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: b}, labels)
}

// boolValue returns 1 for true and 0 for false.
func boolValue(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// result returns the value of the label "result".
func result(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}
