package prom_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/stats"
)

// detailed is a node with a pod that has network, swap and pressure, and one without.
func detailed() prom.Usage {
	at := metav1.NewTime(time.Unix(1000, 0))
	psi := func(some, full uint64) *stats.PSIStats {
		return &stats.PSIStats{Some: stats.PSIData{Total: some}, Full: stats.PSIData{Total: full}}
	}
	swap := func(used uint64, available *uint64) *stats.SwapStats {
		return &stats.SwapStats{Time: at, SwapUsageBytes: &used, SwapAvailableBytes: available}
	}
	cpu := func(p *stats.PSIStats) *stats.CPUStats {
		return &stats.CPUStats{Time: at, UsageCoreNanoSeconds: new(uint64(1e9)), PSI: p}
	}
	memory := func(p *stats.PSIStats) *stats.MemoryStats {
		return &stats.MemoryStats{Time: at, WorkingSetBytes: new(uint64(1)), PSI: p}
	}
	eth0 := stats.InterfaceStats{
		Name: "eth0", RxBytes: new(uint64(1)), RxPackets: new(uint64(2)), RxErrors: new(uint64(3)), RxDropped: new(uint64(4)),
		TxBytes: new(uint64(5)), TxPackets: new(uint64(6)), TxErrors: new(uint64(7)), TxDropped: new(uint64(8)),
	}
	other := stats.InterfaceStats{Name: `a"b`, RxBytes: new(uint64(9))} // of a Stats that knows less
	return prom.Usage{
		Summary: func() (stats.Summary, error) {
			return stats.Summary{
				Node: stats.NodeStats{Swap: swap(100, new(uint64(50))), Network: &stats.NetworkStats{Time: at, Interfaces: []stats.InterfaceStats{eth0}}},
				Pods: []stats.PodStats{
					{
						PodRef: stats.PodReference{Name: "web", Namespace: "default", UID: "uid"}, CPU: cpu(psi(1_500_000, 500_000)), Memory: memory(psi(3e6, 4e6)),
						IO: &stats.IOStats{Time: at, PSI: psi(5e6, 6e6)}, Swap: swap(20, nil),
						Network: &stats.NetworkStats{Time: at, InterfaceStats: eth0, Interfaces: []stats.InterfaceStats{eth0, other}},
						Containers: []stats.ContainerStats{
							{Name: "app", CPU: cpu(psi(7e6, 8e6)), Memory: memory(nil), Swap: swap(10, new(uint64(0)))},
							{Name: "unlimited", Swap: swap(11, nil)},
							{Name: "unknown", CPU: cpu(nil), IO: &stats.IOStats{Time: at}},
						},
					},
					{PodRef: stats.PodReference{Name: "plain", Namespace: "default", UID: "plain"}, CPU: cpu(nil), Swap: &stats.SwapStats{Time: at}},
				},
			}, nil
		},
		Pods: func() []*corev1.Pod { return nil },
	}
}

// RegisterResources has the kubelet's metrics of swap. A container without a limit has none.
func TestRegisterResources_Swap(t *testing.T) {
	reg := prometheus.NewRegistry()
	require.NoError(t, prom.RegisterResources(reg, detailed()))
	for name, want := range map[string][]string{
		"node_swap_usage_bytes": {"node_swap_usage_bytes 100 1000000"},
		"pod_swap_usage_bytes":  {`pod_swap_usage_bytes{namespace="default",pod="web"} 20 1000000`},
		"container_swap_usage_bytes": {
			`container_swap_usage_bytes{container="app",namespace="default",pod="web"} 10 1000000`,
			`container_swap_usage_bytes{container="unlimited",namespace="default",pod="web"} 11 1000000`,
		},
		"container_swap_limit_bytes": {`container_swap_limit_bytes{container="app",namespace="default",pod="web"} 10 1000000`},
	} {
		assert.Equal(t, want, series(t, reg, name))
	}
	assert.Subset(t, wellFormed(t, reg), map[string]bool{"node_swap_usage_bytes": true, "container_swap_limit_bytes": true})
}

// RegisterContainers has cAdvisor's metrics of network, swap and pressure, those of the network for pods alone.
func TestRegisterContainers_NetworkSwapPressure(t *testing.T) {
	reg := prometheus.NewRegistry()
	require.NoError(t, prom.RegisterContainers(reg, detailed()))
	const (
		eth0 = `{container="",id="/kubepods/poduid",image="",interface="eth0",name="",namespace="default",pod="web"} `
		pod  = `{container="",id="/kubepods/poduid",image="",name="",namespace="default",pod="web"} `
		app  = `{container="app",id="/kubepods/poduid/",image="",name="",namespace="default",pod="web"} `
	)
	for name, want := range map[string][]string{
		"container_network_receive_bytes_total": {
			`container_network_receive_bytes_total{container="",id="/kubepods/poduid",image="",interface="a\"b",name="",namespace="default",pod="web"} 9 1000000`,
			"container_network_receive_bytes_total" + eth0 + "1 1000000",
		},
		"container_network_receive_packets_total":          {"container_network_receive_packets_total" + eth0 + "2 1000000"},
		"container_network_receive_errors_total":           {"container_network_receive_errors_total" + eth0 + "3 1000000"},
		"container_network_receive_packets_dropped_total":  {"container_network_receive_packets_dropped_total" + eth0 + "4 1000000"},
		"container_network_transmit_bytes_total":           {"container_network_transmit_bytes_total" + eth0 + "5 1000000"},
		"container_network_transmit_packets_total":         {"container_network_transmit_packets_total" + eth0 + "6 1000000"},
		"container_network_transmit_errors_total":          {"container_network_transmit_errors_total" + eth0 + "7 1000000"},
		"container_network_transmit_packets_dropped_total": {"container_network_transmit_packets_dropped_total" + eth0 + "8 1000000"},
		"container_pressure_cpu_waiting_seconds_total": {
			"container_pressure_cpu_waiting_seconds_total" + pod + "1.5 1000000", "container_pressure_cpu_waiting_seconds_total" + app + "7 1000000",
		},
		"container_pressure_cpu_stalled_seconds_total": {
			"container_pressure_cpu_stalled_seconds_total" + pod + "0.5 1000000", "container_pressure_cpu_stalled_seconds_total" + app + "8 1000000",
		},
		"container_pressure_memory_waiting_seconds_total": {"container_pressure_memory_waiting_seconds_total" + pod + "3 1000000"},
		"container_pressure_memory_stalled_seconds_total": {"container_pressure_memory_stalled_seconds_total" + pod + "4 1000000"},
		"container_pressure_io_waiting_seconds_total":     {"container_pressure_io_waiting_seconds_total" + pod + "5 1000000"},
		"container_pressure_io_stalled_seconds_total":     {"container_pressure_io_stalled_seconds_total" + pod + "6 1000000"},
		"container_memory_swap": {
			"container_memory_swap" + pod + "20 1000000", "container_memory_swap" + app + "10 1000000",
			`container_memory_swap{container="unlimited",id="/kubepods/poduid/",image="",name="",namespace="default",pod="web"} 11 1000000`,
		},
	} {
		assert.ElementsMatch(t, want, series(t, reg, name))
	}
	wellFormed(t, reg)
}
