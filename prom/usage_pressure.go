package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/stats"
)

// interfaceFamily is a counter of the interfaces of a pod.
type interfaceFamily struct {
	family
	of func(*stats.InterfaceStats) *uint64
}

// interfaceFamilies returns cAdvisor's counters of interfaces.
func interfaceFamilies(counter func(name, help string, more ...string) family) []interfaceFamily {
	one := func(name, help string, of func(*stats.InterfaceStats) *uint64) interfaceFamily {
		return interfaceFamily{counter("container_network_"+name+"_total", help, "interface"), of}
	}
	return []interfaceFamily{
		one("receive_bytes", "Bytes received.", func(i *stats.InterfaceStats) *uint64 { return i.RxBytes }),
		one("receive_packets", "Packets received.", func(i *stats.InterfaceStats) *uint64 { return i.RxPackets }),
		one("receive_packets_dropped", "Received packets that were dropped.", func(i *stats.InterfaceStats) *uint64 { return i.RxDropped }),
		one("receive_errors", "Errors while receiving.", func(i *stats.InterfaceStats) *uint64 { return i.RxErrors }),
		one("transmit_bytes", "Bytes transmitted.", func(i *stats.InterfaceStats) *uint64 { return i.TxBytes }),
		one("transmit_packets", "Packets transmitted.", func(i *stats.InterfaceStats) *uint64 { return i.TxPackets }),
		one("transmit_packets_dropped", "Packets to transmit that were dropped.", func(i *stats.InterfaceStats) *uint64 { return i.TxDropped }),
		one("transmit_errors", "Errors while transmitting.", func(i *stats.InterfaceStats) *uint64 { return i.TxErrors }),
	}
}

// interfaces sends the counters of a pod's interfaces.
func (c *containers) interfaces(ch chan<- prometheus.Metric, s *stats.NetworkStats, labels labelSet) {
	if s == nil {
		return
	}
	for i := range s.Interfaces {
		all := labels.with("interface", s.Interfaces[i].Name)
		for _, f := range c.network {
			f.known(ch, s.Time.Time, f.of(&s.Interfaces[i]), all)
		}
	}
}

// pressureFamily is the totals of pressure stall information of a resource.
type pressureFamily struct{ waiting, stalled family }

// pressureFamilyOf returns cAdvisor's counters of the time that tasks waited for a resource.
func pressureFamilyOf(counter func(name, help string, more ...string) family, name, resource string) pressureFamily {
	return pressureFamily{
		waiting: counter("container_pressure_"+name+"_waiting_seconds_total", "Time in which some tasks waited for "+resource+"."),
		stalled: counter("container_pressure_"+name+"_stalled_seconds_total", "Time in which all tasks waited for "+resource+"."),
	}
}

func (f pressureFamily) known(ch chan<- prometheus.Metric, at metav1.Time, psi *stats.PSIStats, labels labelSet) {
	if psi == nil {
		return
	}
	f.waiting.microseconds(ch, at.Time, psi.Some.Total, labels)
	f.stalled.microseconds(ch, at.Time, psi.Full.Total, labels)
}

// swapAndPressure sends the swap space that a pod or container uses, and how long its tasks
// have waited.
func (c *containers) swapAndPressure(
	ch chan<- prometheus.Metric, swap *stats.SwapStats, cpu *stats.CPUStats, memory *stats.MemoryStats, io *stats.IOStats, labels labelSet,
) {
	swapUsage(ch, c.memorySwap, swap, labels)
	if cpu != nil {
		c.cpuPressure.known(ch, cpu.Time, cpu.PSI, labels)
	}
	if memory != nil {
		c.memoryPressure.known(ch, memory.Time, memory.PSI, labels)
	}
	if io != nil {
		c.ioPressure.known(ch, io.Time, io.PSI, labels)
	}
}

// microseconds sends a duration in seconds.
func (f family) microseconds(ch chan<- prometheus.Metric, at time.Time, v uint64, labels labelSet) {
	f.value(ch, at, float64(v)/1e6, labels)
}
