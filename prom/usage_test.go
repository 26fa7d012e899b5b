package prom_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
)

// measured is a node with two pods of one name, of which the second is newer.
func measured() prom.Usage {
	at := metav1.NewTime(time.Unix(1000, 0))
	cpu := func(seconds uint64) *stats.CPUStats {
		return &stats.CPUStats{Time: at, UsageCoreNanoSeconds: new(seconds * 1e9)}
	}
	memory := func(n uint64) *stats.MemoryStats {
		return &stats.MemoryStats{Time: at, UsageBytes: new(n + 2), WorkingSetBytes: new(n), RSSBytes: new(n - 1), PageFaults: new(uint64(5)), MajorPageFaults: new(uint64(1))}
	}
	container := stats.ContainerStats{Name: "app", StartTime: metav1.NewTime(time.Unix(900, 500e6)), CPU: cpu(2), Memory: memory(20), Rootfs: &stats.FSStats{Time: at, UsedBytes: new(uint64(7))}}
	ref := stats.PodReference{Name: "web", Namespace: "default", UID: "old"}
	next := ref
	next.UID = "new"
	quantity := resource.MustParse
	return prom.Usage{
		Summary: func() (stats.Summary, error) {
			return stats.Summary{
				Node: stats.NodeStats{NodeName: "n", CPU: cpu(100), Memory: memory(1000)},
				Pods: []stats.PodStats{
					{PodRef: ref, StartTime: metav1.NewTime(time.Unix(1, 0)), CPU: cpu(9), Memory: memory(99), Containers: []stats.ContainerStats{{Name: "app", CPU: cpu(9)}}},
					{
						PodRef: next, StartTime: metav1.NewTime(time.Unix(2, 0)), CPU: cpu(3), Memory: memory(30), ProcessStats: &stats.ProcessStats{ProcessCount: new(uint64(4))},
						Containers: []stats.ContainerStats{container, {Name: "unknown"}},
					},
					{PodRef: ref, CPU: &stats.CPUStats{Time: at}, Memory: &stats.MemoryStats{Time: at}},
				},
			}, nil
		},
		Pods: func() []*corev1.Pod {
			return []*corev1.Pod{{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "new"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{
					Limits:   corev1.ResourceList{corev1.ResourceCPU: quantity("500m"), corev1.ResourceMemory: quantity("64Mi")},
					Requests: corev1.ResourceList{corev1.ResourceCPU: quantity("250m")},
				}}}},
				Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "app", Image: "nginx:1", ContainerID: "containerd://abc"}}},
			}}
		},
		Capacity: func() corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceCPU: quantity("4"), corev1.ResourceMemory: quantity("8Gi")}
		},
	}
}

// wellFormed checks a scrape as Prometheus and its linter do.
func wellFormed(t *testing.T, reg *prometheus.Registry) map[string]bool {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(scrape(t, reg)))
	require.NoError(t, err)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
	names := map[string]bool{}
	for name := range families {
		names[name] = true
	}
	return names
}

func TestRegisterResources(t *testing.T) {
	reg := prometheus.NewRegistry()
	require.NoError(t, prom.RegisterResources(reg, measured()))
	for name, want := range map[string][]string{
		"node_cpu_usage_seconds_total":       {"node_cpu_usage_seconds_total 100 1000000"},
		"node_memory_working_set_bytes":      {"node_memory_working_set_bytes 1000 1000000"},
		"pod_cpu_usage_seconds_total":        {`pod_cpu_usage_seconds_total{namespace="default",pod="web"} 3 1000000`},
		"pod_memory_working_set_bytes":       {`pod_memory_working_set_bytes{namespace="default",pod="web"} 30 1000000`},
		"container_cpu_usage_seconds_total":  {`container_cpu_usage_seconds_total{container="app",namespace="default",pod="web"} 2 1000000`},
		"container_memory_working_set_bytes": {`container_memory_working_set_bytes{container="app",namespace="default",pod="web"} 20 1000000`},
		"container_start_time_seconds":       {`container_start_time_seconds{container="app",namespace="default",pod="web"} 900.5`},
		"resource_scrape_error":              {"resource_scrape_error 0"},
	} {
		assert.Equal(t, want, series(t, reg, name))
	}
	assert.Len(t, wellFormed(t, reg), 8)
}

func TestRegisterContainers(t *testing.T) {
	u := measured()
	reg := prometheus.NewRegistry()
	full := u.Summary
	u.Summary = func() (stats.Summary, error) {
		s, err := full()
		s.Pods = s.Pods[:2] // each pod has one UID
		return s, err
	}
	require.NoError(t, prom.RegisterContainers(reg, u))
	const (
		app = `container="app",id="/kubepods/podnew/abc",image="nginx:1",name="abc",namespace="default",pod="web"`
		cpu = `container="app",cpu="total",id="/kubepods/podnew/abc",image="nginx:1",name="abc",namespace="default",pod="web"`
		pod = `container="",id="/kubepods/podnew",image="",name="",namespace="default",pod="web"`
	)
	text := scrape(t, reg)
	for _, want := range []string{
		"container_cpu_usage_seconds_total{" + cpu + "} 2 1000000",
		`container_cpu_usage_seconds_total{container="",cpu="total",id="/kubepods/podnew",image="",name="",namespace="default",pod="web"} 3 1000000`,
		`container_cpu_usage_seconds_total{container="",cpu="total",id="/kubepods/podold",image="",name="",namespace="default",pod="web"} 9 1000000`,
		"container_memory_usage_bytes{" + app + "} 22 1000000",
		"container_memory_working_set_bytes{" + app + "} 20 1000000",
		"container_memory_working_set_bytes{" + pod + "} 30 1000000",
		"container_memory_rss{" + app + "} 19 1000000",
		`container_memory_failures_total{container="app",failure_type="pgfault",id="/kubepods/podnew/abc",image="nginx:1",name="abc",namespace="default",pod="web",scope="container"} 5 1000000`,
		`container_memory_failures_total{container="app",failure_type="pgmajfault",id="/kubepods/podnew/abc",image="nginx:1",name="abc",namespace="default",pod="web",scope="container"} 1 1000000`,
		`container_fs_usage_bytes{container="app",device="",id="/kubepods/podnew/abc",image="nginx:1",name="abc",namespace="default",pod="web"} 7 1000000`,
		"container_start_time_seconds{" + app + "} 900.5",
		"container_processes{" + pod + "} 4",
		"container_threads{" + pod + "} 4",
		"container_spec_cpu_period{" + app + "} 100000",
		"container_spec_cpu_quota{" + app + "} 50000",
		"container_spec_cpu_shares{" + app + "} 256",
		"container_spec_memory_limit_bytes{" + app + "} 6.7108864e+07",
		"machine_cpu_cores 4",
		"machine_memory_bytes 8.589934592e+09",
		"container_scrape_error 0",
	} {
		assert.Contains(t, text, want+"\n")
	}
	assert.NotContains(t, text, "unknown", "nothing is known of it")
	assert.Len(t, wellFormed(t, reg), 16)
}

// scrapeLimits returns the metrics of a pod whose container has these resources, without those of the machine.
func scrapeLimits(t *testing.T, resources corev1.ResourceRequirements) string {
	t.Helper()
	u := measured()
	pods := u.Pods()
	pods[0].Spec.Containers[0].Resources = resources
	u.Pods, u.Capacity = func() []*corev1.Pod { return pods }, nil
	summary, _ := u.Summary()
	summary.Pods = summary.Pods[1:2]
	u.Summary = func() (stats.Summary, error) { return summary, nil }
	reg := prometheus.NewRegistry()
	require.NoError(t, prom.RegisterContainers(reg, u))
	return scrape(t, reg)
}

// A pod that requests nothing has the least shares and no limit.
func TestRegisterContainers_WithoutRequests(t *testing.T) {
	text := scrapeLimits(t, corev1.ResourceRequirements{})
	assert.Regexp(t, `container_spec_cpu_shares\{.*\} 2\n`, text)
	assert.Regexp(t, `container_spec_memory_limit_bytes\{.*\} 0\n`, text)
	assert.NotContains(t, text, "container_spec_cpu_quota")
	assert.NotContains(t, text, "machine_")
}

// The limits are those that the kernel gets: whole numbers within its bounds.
func TestRegisterContainers_LimitsOfTheKernel(t *testing.T) {
	for name, c := range map[string]struct{ cpu, shares, quota string }{
		"rounded":  {"17m", "17", "1700"},
		"smallest": {"1m", "2", "1000"},
		"largest":  {"300", "262144", "3e+07"},
	} {
		text := scrapeLimits(t, corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(c.cpu)},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(c.cpu), corev1.ResourceMemory: resource.MustParse("1.1Ki")},
		})
		assert.Regexp(t, `container_spec_cpu_shares\{.*\} `+regexp.QuoteMeta(c.shares)+`\n`, text, name)
		assert.Regexp(t, `container_spec_cpu_quota\{.*\} `+regexp.QuoteMeta(c.quota)+`\n`, text, name)
		assert.Regexp(t, `container_spec_memory_limit_bytes\{.*\} 1127\n`, text, name)
	}
}

func TestRegisterUsage_Failure(t *testing.T) {
	u := measured()
	u.Summary = func() (stats.Summary, error) { return stats.Summary{}, errors.New("x") }
	resources, containers := prometheus.NewRegistry(), prometheus.NewRegistry()
	require.NoError(t, prom.RegisterResources(resources, u))
	require.NoError(t, prom.RegisterContainers(containers, u))
	assert.Equal(t, map[string]bool{"resource_scrape_error": true}, wellFormed(t, resources))
	assert.Equal(t, []string{"resource_scrape_error 1"}, series(t, resources, "resource_scrape_error"))
	assert.Equal(t, []string{"container_scrape_error 1"}, series(t, containers, "container_scrape_error"))
}

// If the runtime does not report its containers, that is a failure, and what is known is there.
func TestRegisterUsage_IncompleteSummary(t *testing.T) {
	u := measured()
	summary, _ := u.Summary()
	summary.Incomplete = errors.New("x")
	u.Summary = func() (stats.Summary, error) { return summary, nil }
	resources, containers := prometheus.NewRegistry(), prometheus.NewRegistry()
	require.NoError(t, prom.RegisterResources(resources, u))
	require.NoError(t, prom.RegisterContainers(containers, u))
	assert.Equal(t, []string{"resource_scrape_error 1"}, series(t, resources, "resource_scrape_error"))
	assert.NotEmpty(t, series(t, resources, "node_cpu_usage_seconds_total"))
	assert.Equal(t, []string{"container_scrape_error 1"}, series(t, containers, "container_scrape_error"))
}

func TestRegisterUsage_RejectsInvalidArguments(t *testing.T) {
	reg := prometheus.NewRegistry()
	u := measured()
	require.Error(t, prom.RegisterResources(nil, u))
	require.Error(t, prom.RegisterResources(reg, prom.Usage{}))
	require.Error(t, prom.RegisterContainers(nil, u))
	require.Error(t, prom.RegisterContainers(reg, prom.Usage{Summary: u.Summary}))
	require.Error(t, prom.RegisterContainers(reg, prom.Usage{Pods: u.Pods}))
	require.NoError(t, prom.RegisterResources(reg, u))
	require.Error(t, prom.RegisterContainers(reg, u), "same names, other labels")
}

func TestRegisterSLIs(t *testing.T) {
	m, all := newMetrics(t)
	reg := prometheus.NewRegistry()
	require.Error(t, m.RegisterSLIs(nil))
	require.NoError(t, m.RegisterSLIs(reg))
	require.Error(t, m.RegisterSLIs(reg))
	m.HealthChecked("healthz", "syncloop", nil)
	m.HealthChecked("healthz", "syncloop", errors.New("no relist for 3m0s"))
	m.HealthChecked("healthz", "ping", nil)
	assert.Equal(t, map[string]bool{"kubernetes_healthcheck": true, "kubernetes_healthchecks_total": true}, wellFormed(t, reg))
	assert.Equal(t, []string{`kubernetes_healthcheck{name="ping",type="healthz"} 1`, `kubernetes_healthcheck{name="syncloop",type="healthz"} 0`},
		series(t, reg, "kubernetes_healthcheck"))
	assert.Equal(t, []string{
		`kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 1`,
		`kubernetes_healthchecks_total{name="syncloop",status="error",type="healthz"} 1`,
		`kubernetes_healthchecks_total{name="syncloop",status="success",type="healthz"} 1`,
	}, series(t, reg, "kubernetes_healthchecks_total"))
	assert.Empty(t, series(t, all, "kubernetes_healthcheck"))
}

func TestRegisterProbes(t *testing.T) {
	m, all := newMetrics(t)
	reg := prometheus.NewRegistry()
	require.Error(t, m.RegisterProbes(nil))
	require.Error(t, m.RegisterProbes(all), "it has them")
	m.Probe().Probed(probe.ProbeRun{Pod: newPod("web"), Container: "c", Type: probe.Liveness, Result: runtime.ProbeSuccess})
	assert.Len(t, series(t, all, "prober_probe_total"), 1)
	require.NoError(t, m.RegisterProbes(reg))
	require.Error(t, m.RegisterProbes(reg))
	assert.Empty(t, series(t, all, "prober_probe_total"), "in sums over both they would be twice")
	assert.Empty(t, series(t, all, "prober_probe_duration_seconds_count"))
	m.Probe().Probed(probe.ProbeRun{Pod: newPod("web"), Container: "c", Type: probe.Liveness, Result: runtime.ProbeSuccess})
	assert.Equal(t, map[string]bool{"prober_probe_total": true, "prober_probe_duration_seconds": true}, wellFormed(t, reg))
}
