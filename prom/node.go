package prom

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
)

// Node describes a node, and what of it is counted on each scrape. The functions are called from any goroutine, and must not
// block. A field that is not set has no series.
type Node struct {
	// Name is that of the Node object. Alerts join kubelet_node_name to have it.
	Name string
	// KubeletVersion is what the Node object has as the version of the kubelet, such as v1.37.2.
	KubeletVersion string
	// CgroupVersion is 1 or 2.
	CgroupVersion int

	// Workers returns the pods that have a worker: podworkers.Workers.Snapshot.
	Workers func() []podworkers.State
	// DesiredUIDs returns the UIDs of all desired pods, to distinguish them among Workers.
	DesiredUIDs func() map[types.UID]struct{}
	// MirrorPods returns the number of static pods that have a mirror pod.
	MirrorPods func() int
	// ClaimsInUse returns the number of ResourceClaims in use by DRA driver, and of all under "<any>": that of a dra.Manager.
	ClaimsInUse func() map[string]int
	// ClientCertificate and ServingCertificate return when the certificate expires for requests to the API server and that
	// of the HTTPS server; zero: there is none.
	ClientCertificate, ServingCertificate func() time.Time
	// CPUs returns the CPUs that containers share, and how many of each NUMA node containers have for themselves: the Usage
	// of a cpumanager.Manager.
	CPUs func() (shared int, exclusive map[int]int)
}

// RegisterNode registers the metrics of a Node. They are not among those of New, because most need the agent.
func RegisterNode(reg prometheus.Registerer, n Node) error {
	if reg == nil {
		return errors.New("prom: nil Registerer")
	}
	if (n.Workers == nil) != (n.DesiredUIDs == nil) {
		return errors.New("prom: Node.Workers and DesiredUIDs: only one is set")
	}
	if err := reg.Register(newNode(n)); err != nil {
		return fmt.Errorf("prom: register node: %w", err)
	}
	return nil
}

// nodeCollector is the collector of a Node.
type nodeCollector struct {
	n Node

	name, build, cgroups, working, mirrors, claims, client, serving, shared, exclusive, byNode *prometheus.Desc // nil: there is nothing to count
}

func newNode(n Node) *nodeCollector {
	desc := func(isSet bool, name, help string, labels ...string) *prometheus.Desc {
		if !isSet {
			return nil
		}
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &nodeCollector{
		n:    n,
		name: desc(n.Name != "", "kubelet_node_name", "Name of the node, in the label. The value is always 1.", "node"),
		build: desc(n.KubeletVersion != "", "kubernetes_build_info", "Version of Kubernetes that the node reports, in labels. The value is always 1.",
			"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"),
		cgroups: desc(n.CgroupVersion != 0, "kubelet_cgroup_version", "Version of cgroups, 1 or 2."),
		working: desc(n.Workers != nil, "kubelet_working_pods",
			"Pods that have a worker, by what it does (sync, terminating, terminated), whether a source contains them (desired, orphan, or runtime_only if none ever did), and whether they are static.",
			"lifecycle", "config", "static"),
		mirrors: desc(n.MirrorPods != nil, "kubelet_mirror_pods", "Static pods that have a mirror pod."),
		claims:  desc(n.ClaimsInUse != nil, "dra_resource_claims_in_use", "ResourceClaims in use, by driver, and of all drivers together.", "driver_name"),
		client: desc(n.ClientCertificate != nil, "kubelet_certificate_manager_client_ttl_seconds",
			"Seconds until the client certificate expires, negative since it has; +Inf without one."),
		serving: desc(n.ServingCertificate != nil, "kubelet_certificate_manager_server_ttl_seconds",
			"Seconds until the serving certificate expires, negative since it has; +Inf without one."),
		shared:    desc(n.CPUs != nil, "kubelet_cpu_manager_shared_pool_size_millicores", "CPUs that containers without their own share, without the reserved ones, in millicores."),
		exclusive: desc(n.CPUs != nil, "kubelet_cpu_manager_exclusive_cpu_allocation_count", "CPUs that containers have for themselves."),
		byNode:    desc(n.CPUs != nil, "kubelet_cpu_manager_allocation_per_numa", "CPUs that containers have for themselves, by NUMA node.", "numa_node"),
	}
}

// Describe implements prometheus.Collector.
func (c *nodeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.name, c.build, c.cgroups, c.working, c.mirrors, c.claims, c.client, c.serving, c.shared, c.exclusive, c.byNode} {
		if d != nil {
			ch <- d
		}
	}
}

// Collect implements prometheus.Collector.
func (c *nodeCollector) Collect(ch chan<- prometheus.Metric) {
	value := func(d *prometheus.Desc, v float64, labels ...string) {
		if d != nil {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
		}
	}
	set := func(d *prometheus.Desc, v int, labels ...string) { value(d, float64(v), labels...) }
	set(c.name, 1, c.n.Name)
	set(c.build, 1, buildLabels(c.n.KubeletVersion)...)
	set(c.cgroups, c.n.CgroupVersion)
	if c.working != nil {
		for kind, n := range workingPods(c.n.Workers(), c.n.DesiredUIDs()) {
			set(c.working, n, kind.lifecycle, kind.config, kind.static)
		}
	}
	if c.mirrors != nil {
		set(c.mirrors, c.n.MirrorPods())
	}
	if c.claims != nil {
		for driver, n := range c.n.ClaimsInUse() {
			set(c.claims, n, driver)
		}
	}
	if c.client != nil {
		value(c.client, secondsUntil(c.n.ClientCertificate()))
	}
	if c.serving != nil {
		value(c.serving, secondsUntil(c.n.ServingCertificate()))
	}
	if c.shared != nil {
		shared, exclusive := c.n.CPUs()
		set(c.shared, 1000*shared)
		total := 0
		for node, n := range exclusive {
			set(c.byNode, n, strconv.Itoa(node))
			total += n
		}
		set(c.exclusive, total)
	}
}

// secondsUntil returns the whole seconds until a time, +Inf for the zero time.
func secondsUntil(t time.Time) float64 {
	if t.IsZero() {
		return math.Inf(1)
	}
	return math.Trunc(time.Until(t).Seconds())
}

// buildLabels returns the labels of kubernetes_build_info. What is not known of the build is empty.
func buildLabels(version string) []string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return []string{major, minor, version, "", "", "", runtime.Version(), runtime.Compiler, runtime.GOOS + "/" + runtime.GOARCH}
}

// podKind has the labels of kubelet_working_pods.
type podKind struct{ lifecycle, config, static string }

// workingPods counts pods. All kinds that a kubelet counts are in the result.
func workingPods(states []podworkers.State, desired map[types.UID]struct{}) map[podKind]int {
	counts := map[podKind]int{}
	for _, phase := range []podworkers.Phase{podworkers.Syncing, podworkers.Terminating, podworkers.Terminated} {
		counts[podKind{lifecycle(phase), "runtime_only", "unknown"}] = 0
		for _, config := range []string{"desired", "orphan"} {
			counts[podKind{lifecycle(phase), config, ""}] = 0
			counts[podKind{lifecycle(phase), config, "true"}] = 0
		}
	}
	for i := range states {
		s := &states[i]
		kind := podKind{lifecycle(s.Phase), "orphan", ""}
		if _, ok := desired[s.UID]; ok {
			kind.config = "desired"
		}
		if s.Static {
			kind.static = "true"
		}
		if s.Orphan {
			kind.config, kind.static = "runtime_only", "unknown"
		}
		counts[kind]++
	}
	return counts
}

func lifecycle(p podworkers.Phase) string {
	switch p {
	case podworkers.Syncing:
		return "sync"
	case podworkers.Terminating:
		return "terminating"
	default: // also Finished: a kubelet counts pods as terminated until it forgets them
		return "terminated"
	}
}
