package prom

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
)

// Problems queries the current problems of an agent. The functions are called on
// each scrape, from any goroutine, and must not block. Any may be nil.
type Problems struct {
	// SourceErrors returns the errors of all sources: Agent.SourceErrors.
	SourceErrors func() []podsource.SourceError
	// InspectionErrors returns the pods that cannot be inspected:
	// Agent.InspectionErrors.
	InspectionErrors func() []pleg.InspectionError
	// RejectedPods returns the number of desired pods that the node has rejected or
	// evicted: the length of Agent.PodProblems.
	RejectedPods func() int
}

// RegisterProblems registers the numbers of current problems by kind: source errors
// by source, pods that cannot be inspected, and rejected or evicted pods. A source
// without errors has no series.
func RegisterProblems(reg prometheus.Registerer, p Problems) error {
	if reg == nil {
		return errors.New("prom: nil Registerer")
	}
	if err := reg.Register(&problems{Problems: p, desc: prometheus.NewDesc("sublet_problems",
		"Current problems, by kind: source (source errors, by source), inspection (pods that cannot be inspected) or rejected (rejected or evicted pods).",
		[]string{"kind", "source"}, nil)}); err != nil {
		return fmt.Errorf("prom: register problems: %w", err)
	}
	return nil
}

// problems is a collector that counts problems on each scrape.
type problems struct {
	Problems

	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (p *problems) Describe(ch chan<- *prometheus.Desc) { ch <- p.desc }

// Collect implements prometheus.Collector.
func (p *problems) Collect(ch chan<- prometheus.Metric) {
	set := func(n int, kind, source string) {
		ch <- prometheus.MustNewConstMetric(p.desc, prometheus.GaugeValue, float64(n), kind, source)
	}
	if p.SourceErrors != nil {
		bySource := map[string]int{}
		for _, e := range p.SourceErrors() {
			bySource[e.Source]++
		}
		for source, n := range bySource {
			set(n, "source", source)
		}
	}
	if p.InspectionErrors != nil {
		set(len(p.InspectionErrors()), "inspection", "")
	}
	if p.RejectedPods != nil {
		set(p.RejectedPods(), "rejected", "")
	}
}
