package prom

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/runtime"
)

// seriesTTL is the time after the last probe of a pod when its series are dropped
// even if no hook has reported the pod finished.
const seriesTTL = time.Hour

// probeMetrics has series for each pod and drops them when the pod has finished.
type probeMetrics struct {
	probes   *prometheus.CounterVec
	duration *prometheus.HistogramVec
	late     prometheus.Histogram
	apart    atomic.Bool // probes and duration are registered with a second Registerer

	mu   sync.Mutex // guards pods
	pods map[types.UID]*probedPod
}

// probedPod records which series exist for a pod.
type probedPod struct {
	last            time.Time
	namespace, name string
	probes          map[probeKey]struct{}
}

type probeKey struct{ probeType, container string }

func newProbe() *probeMetrics {
	return &probeMetrics{
		probes: counters("prober_probe_total", "Probes run, by result.",
			"probe_type", "result", "container", "pod", "namespace", "pod_uid"),
		duration: histograms("prober_probe_duration_seconds", "Duration of probes.", prometheus.DefBuckets,
			"probe_type", "container", "pod", "namespace"),
		late: histogram("sublet_probe_delay_seconds", "Delay between the scheduled and the actual start of a probe.", quick()),
		pods: map[types.UID]*probedPod{},
	}
}

func (p *probeMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{p.probes, p.duration, p.late}
}

// registeredApart returns what RegisterProbes has registered.
func (p *probeMetrics) registeredApart() []prometheus.Collector {
	if !p.apart.Load() {
		return nil
	}
	return []prometheus.Collector{p.probes, p.duration}
}

// Probe returns the hooks of a probe.Manager.
func (m *Metrics) Probe() probe.Hooks {
	return probe.Hooks{Probed: m.probe.probed}
}

func (p *probeMetrics) probed(r probe.ProbeRun) {
	probeType := typeOf(r.Type)
	p.mu.Lock()
	defer p.mu.Unlock() // so that series are not re-created while they are dropped
	pod := p.pods[r.Pod.UID]
	if pod == nil {
		pod = &probedPod{namespace: r.Pod.Namespace, name: r.Pod.Name, probes: map[probeKey]struct{}{}}
		p.pods[r.Pod.UID] = pod
	}
	pod.last = time.Now()
	pod.probes[probeKey{probeType, r.Container}] = struct{}{}
	p.probes.WithLabelValues(probeType, resultOf(r.Result), r.Container, pod.name, pod.namespace, string(r.Pod.UID)).Inc()
	p.duration.WithLabelValues(probeType, r.Container, pod.name, pod.namespace).Observe(r.Duration.Seconds())
	if !r.ScheduledAt.IsZero() {
		p.late.Observe(max(0, r.StartedAt.Sub(r.ScheduledAt)).Seconds())
	}
}

// forget drops the series of a finished pod.
func (p *probeMetrics) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(uid)
}

func (p *probeMetrics) drop(uid types.UID) {
	pod := p.pods[uid]
	if pod == nil {
		return
	}
	delete(p.pods, uid)
	for s := range pod.probes {
		for _, r := range []runtime.ProbeResult{runtime.ProbeSuccess, runtime.ProbeFailure, runtime.ProbeUnknown} {
			p.probes.DeleteLabelValues(s.probeType, resultOf(r), s.container, pod.name, pod.namespace, string(uid))
		}
		if !p.shared(pod, s) {
			p.duration.DeleteLabelValues(s.probeType, s.container, pod.name, pod.namespace)
		}
	}
}

// shared reports whether another pod with the same name uses the same series. Such
// a pod is created when a manifest is edited.
func (p *probeMetrics) shared(dropped *probedPod, s probeKey) bool {
	for _, pod := range p.pods {
		if pod.name != dropped.name || pod.namespace != dropped.namespace {
			continue
		}
		if _, ok := pod.probes[s]; ok {
			return true
		}
	}
	return false
}

// sweep drops the series of pods that have not been probed for seriesTTL.
func (p *probeMetrics) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, pod := range p.pods {
		if time.Since(pod.last) > seriesTTL {
			p.drop(uid)
		}
	}
}

func typeOf(t probe.ProbeType) string {
	switch t {
	case probe.Liveness:
		return "Liveness"
	case probe.Readiness:
		return "Readiness"
	default:
		return "Startup"
	}
}

func resultOf(r runtime.ProbeResult) string {
	switch r {
	case runtime.ProbeSuccess:
		return "successful"
	case runtime.ProbeFailure:
		return "failed"
	default:
		return "unknown"
	}
}
