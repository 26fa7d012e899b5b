package prom

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

// managerMetrics are about the CPUs, the memory and the devices that containers have for themselves.
type managerMetrics struct {
	cpuRequests, cpuErrors, memoryRequests, memoryErrors prometheus.Counter
	admissions, admissionErrors                          prometheus.Counter
	admission                                            prometheus.Histogram
	registrations                                        *prometheus.CounterVec
	allocation, claims, driverCalls, cgroups             *prometheus.HistogramVec
	resourcesTotal                                       *prometheus.CounterVec
	resourcesRequests, resourcesErrors                   map[string]*prometheus.CounterVec // by method
	drivers, resources                                   *labelValues                      // of ResourceClaims; of device plugins
}

func newManagers() managerMetrics {
	ofMethods := func(name, help string) map[string]*prometheus.CounterVec {
		of := func(suffix, method string) *prometheus.CounterVec {
			return counters("kubelet_pod_resources_endpoint_"+name+suffix, "Calls of "+method+" of the pod resources API"+help+", by version.", "server_api_version")
		}
		return map[string]*prometheus.CounterVec{
			"List": of("_list", "List"), "Get": of("_get", "Get"), "GetAllocatableResources": of("_get_allocatable", "GetAllocatableResources"),
		}
	}
	draBuckets := buckets(prometheus.ExponentialBucketsRange(.1, 40, 15)) // those of the kubelet
	return managerMetrics{
		cpuRequests:    counter("kubelet_cpu_manager_pinning_requests_total", "Containers that were to get CPUs for themselves."),
		cpuErrors:      counter("kubelet_cpu_manager_pinning_errors_total", "Containers that were to get CPUs for themselves, and did not."),
		memoryRequests: counter("kubelet_memory_manager_pinning_requests_total", "Containers whose memory was to be confined to NUMA nodes."),
		memoryErrors:   counter("kubelet_memory_manager_pinning_errors_total", "Containers whose memory was to be confined to NUMA nodes, and was not."),
		admissions:     counter("kubelet_topology_manager_admission_requests_total", "Admissions of pods by NUMA nodes."),
		admissionErrors: counter("kubelet_topology_manager_admission_errors_total",
			"Pods rejected for want of resources of suitable NUMA nodes, or of enough resources."),
		admission: histogram("kubelet_topology_manager_admission_duration_ms", "Duration of admissions of pods by NUMA nodes, in milliseconds.",
			prometheus.ExponentialBuckets(.05, 2, 15)),
		registrations: counters("kubelet_device_plugin_registration_total", "Registrations of device plugins, by resource.", "resource_name"),
		allocation: histograms("kubelet_device_plugin_alloc_duration_seconds", "Duration of the answers of device plugins to requests for devices, by resource.",
			prometheus.DefBuckets, "resource_name"),
		claims: histograms("dra_operations_duration_seconds", "Time in which all ResourceClaims of a pod were prepared or released, by operation and whether it failed.",
			draBuckets, "operation_name", "is_error"),
		driverCalls: histograms("dra_grpc_operations_duration_seconds", "Duration of calls of DRA drivers, by driver, method and gRPC status.",
			draBuckets, "driver_name", "method_name", "grpc_status_code"),
		cgroups: histograms("kubelet_cgroup_manager_duration_seconds", "Duration of changes of the cgroups of pods, by operation: create, update or destroy.",
			prometheus.DefBuckets, "operation_type"),
		resourcesTotal:    counters("kubelet_pod_resources_endpoint_requests_total", "Calls of the pod resources API, by version.", "server_api_version"),
		resourcesRequests: ofMethods("requests", ""),
		resourcesErrors:   ofMethods("errors", " that failed"),
		drivers:           newLabelValues(),
		resources:         newLabelValues(),
	}
}

func (g *managerMetrics) all() []prometheus.Collector {
	all := []prometheus.Collector{
		g.cpuRequests, g.cpuErrors, g.memoryRequests, g.memoryErrors, g.admissions, g.admissionErrors, g.admission,
		g.registrations, g.allocation, g.claims, g.driverCalls, g.cgroups, g.resourcesTotal,
	}
	for _, of := range []map[string]*prometheus.CounterVec{g.resourcesRequests, g.resourcesErrors} {
		for _, c := range of {
			all = append(all, c)
		}
	}
	return all
}

// CPUManager returns the hooks of a cpumanager.Manager.
func (m *Metrics) CPUManager() cpumanager.Hooks {
	g := &m.managers
	return cpumanager.Hooks{Requested: func(r cpumanager.Request) {
		g.cpuRequests.Inc()
		if r.Err != nil {
			g.cpuErrors.Inc()
			return
		}
		if r.Memory > 0 {
			g.memoryRequests.Inc()
			if !r.IsConfined {
				g.memoryErrors.Inc()
			}
		}
	}}
}

// Topology returns the hooks of a topology.Manager.
func (m *Metrics) Topology() topology.Hooks {
	g := &m.managers
	return topology.Hooks{PodAdmitted: func(_ *corev1.Pod, result podspec.AdmitResult, duration time.Duration) {
		g.admissions.Inc()
		if !result.Admitted {
			g.admissionErrors.Inc()
		}
		g.admission.Observe(float64(duration) / float64(time.Millisecond))
	}}
}

// Devices returns the hooks of a devices.Manager.
func (m *Metrics) Devices() devices.Hooks {
	return devices.Hooks{Allocated: func(r devices.Request) {
		m.managers.allocation.WithLabelValues(m.managers.resources.add(string(r.Resource))).Observe(r.Duration.Seconds())
	}}
}

// Cgroups returns the hooks of a cgroup.Manager.
func (m *Metrics) Cgroups() cgroup.Hooks {
	return cgroup.Hooks{Changed: func(op cgroup.Operation, duration time.Duration, _ error) {
		m.managers.cgroups.WithLabelValues(string(op)).Observe(duration.Seconds())
	}}
}

// DevicePluginRegistered is the hook for deviceplugin.Hooks.Registered.
func (m *Metrics) DevicePluginRegistered(resource corev1.ResourceName) {
	m.managers.registrations.WithLabelValues(m.managers.resources.add(string(resource))).Inc()
}

// PodResourcesRequested is the hook for podresources.Hooks.Requested.
func (m *Metrics) PodResourcesRequested(version, method string, err error) {
	g := &m.managers
	g.resourcesTotal.WithLabelValues(version).Inc()
	requests, ok := g.resourcesRequests[method]
	if !ok {
		return
	}
	requests.WithLabelValues(version).Inc()
	if err != nil {
		g.resourcesErrors[method].WithLabelValues(version).Inc()
	}
}

// ClaimsPrepared is the hook for dra.Hooks.PodPrepared.
func (m *Metrics) ClaimsPrepared(_ types.UID, duration time.Duration, err error) {
	m.claimsEnded("PrepareResources", duration, err)
}

// ClaimsReleased is the hook for dra.Hooks.PodReleased.
func (m *Metrics) ClaimsReleased(_ types.UID, duration time.Duration, err error) {
	m.claimsEnded("UnprepareResources", duration, err)
}

func (m *Metrics) claimsEnded(operation string, duration time.Duration, err error) {
	m.managers.claims.WithLabelValues(operation, strconv.FormatBool(err != nil)).Observe(duration.Seconds())
}

// DRACallEnded is the hook for dra.Hooks.RPCEnded.
func (m *Metrics) DRACallEnded(driver, method, code string, duration time.Duration) {
	m.managers.driverCalls.WithLabelValues(m.managers.drivers.add(driver), method, grpcCode(code)).Observe(duration.Seconds())
}
