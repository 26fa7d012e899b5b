package prom

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// healthMetrics are the service level indicators (SLIs) of Kubernetes' components.
type healthMetrics struct {
	last   *prometheus.GaugeVec
	checks *prometheus.CounterVec
}

func newHealth() healthMetrics {
	return healthMetrics{
		last:   gauges("kubernetes_healthcheck", "1 if the last run of a health check passed, else 0.", "name", "type"),
		checks: counters("kubernetes_healthchecks_total", "Runs of health checks, by result.", "name", "type", "status"),
	}
}

// HealthChecked is the hook of server.Hooks.
func (m *Metrics) HealthChecked(endpoint, check string, err error) {
	m.health.last.WithLabelValues(check, endpoint).Set(boolValue(err == nil))
	m.health.checks.WithLabelValues(check, endpoint, result(err)).Inc()
}

// RegisterSLIs registers the metrics of health checks, those of the kubelet's
// /metrics/slis (KEP-3466), with a Registerer of its own: a kubelet has them in no other
// place. They have series for what HealthChecked reported.
func (m *Metrics) RegisterSLIs(reg prometheus.Registerer) error {
	if reg == nil {
		return errors.New("prom: nil Registerer")
	}
	for _, c := range []prometheus.Collector{m.health.last, m.health.checks} {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("prom: register health checks: %w", err)
		}
	}
	return nil
}
