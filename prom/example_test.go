package prom_test

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sublet-dev/agent/prom"
)

// The metrics of a generator of pod lifecycle events, on a registry of its own.
func Example() {
	registry := prometheus.NewRegistry()
	metrics, err := prom.New(registry)
	if err != nil {
		fmt.Println(err)
		return
	}
	hooks := metrics.PLEG() // goes into pleg.Config
	hooks.Relisted(20*time.Millisecond, 5, 1, nil)

	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range families {
		if f.GetName() == "kubelet_pleg_relist_duration_seconds" {
			fmt.Println(f.GetMetric()[0].GetHistogram().GetSampleCount(), "relist")
		}
	}
	// Output: 1 relist
}
