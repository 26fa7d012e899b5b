package prom

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/runtime"
)

// idle is how long a pod was not probed when its series are dropped, in case
// nobody told of its end.
const idle = time.Hour

// probeMetrics has series for each pod, and drops them when the pod is gone.
type probeMetrics struct {
	probes   *prometheus.CounterVec
	duration *prometheus.HistogramVec
	late     prometheus.Histogram

	mu   sync.Mutex // guards pods
	pods map[types.UID]*probedPod
}

// probedPod is which series there are for a pod.
type probedPod struct {
	last            time.Time
	namespace, name string
	probes          map[probed]struct{}
}

type probed struct{ kind, container string }

func newProbe() *probeMetrics {
	return &probeMetrics{
		probes: counters("prober_probe_total", "Probes that were run, by result.",
			"probe_type", "result", "container", "pod", "namespace", "pod_uid"),
		duration: histograms("prober_probe_duration_seconds", "How long a probe took.", prometheus.DefBuckets,
			"probe_type", "container", "pod", "namespace"),
		late: histogram("sublet_probe_delay_seconds", "How much later than it should a probe began.", quick()),
		pods: map[types.UID]*probedPod{},
	}
}

func (p *probeMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{p.probes, p.duration, p.late}
}

// Probe returns the hooks of a probe.Manager.
func (m *Metrics) Probe() probe.Hooks {
	return probe.Hooks{Probed: m.probe.probed}
}

func (p *probeMetrics) probed(r probe.ProbeRun) {
	kind := kindOf(r.Type)
	p.mu.Lock()
	defer p.mu.Unlock() // so that series are not made anew while they are dropped
	pod := p.pods[r.Pod.UID]
	if pod == nil {
		pod = &probedPod{namespace: r.Pod.Namespace, name: r.Pod.Name, probes: map[probed]struct{}{}}
		p.pods[r.Pod.UID] = pod
	}
	pod.last = time.Now()
	pod.probes[probed{kind, r.Container}] = struct{}{}
	p.probes.WithLabelValues(kind, resultOf(r.Result), r.Container, pod.name, pod.namespace, string(r.Pod.UID)).Inc()
	p.duration.WithLabelValues(kind, r.Container, pod.name, pod.namespace).Observe(r.Duration.Seconds())
	if !r.ScheduledAt.IsZero() {
		p.late.Observe(max(0, r.StartedAt.Sub(r.ScheduledAt)).Seconds())
	}
}

// forget drops the series of a pod that has ended.
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
			p.probes.DeleteLabelValues(s.kind, resultOf(r), s.container, pod.name, pod.namespace, string(uid))
		}
		if !p.shared(pod, s) {
			p.duration.DeleteLabelValues(s.kind, s.container, pod.name, pod.namespace)
		}
	}
}

// shared reports whether another pod of that name has the same series: the next
// one of an edited manifest.
func (p *probeMetrics) shared(gone *probedPod, s probed) bool {
	for _, pod := range p.pods {
		if pod.name != gone.name || pod.namespace != gone.namespace {
			continue
		}
		if _, ok := pod.probes[s]; ok {
			return true
		}
	}
	return false
}

// sweep drops what has not been probed for long.
func (p *probeMetrics) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, pod := range p.pods {
		if time.Since(pod.last) > idle {
			p.drop(uid)
		}
	}
}

func kindOf(k probe.ProbeType) string {
	switch k {
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
