package prom_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/runtime"
)

// Every hook changes its metric, and failures are not counted as successes.
func TestMetrics_Values(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reg := newMetrics(t)
		callAllHooks(t, m, reg)
		for name, want := range map[string]string{
			"sublet_runtime_ready":                          "sublet_runtime_ready 1",
			"sublet_pods_admitted_total":                    "sublet_pods_admitted_total{how=\"adopted\"} 1\nsublet_pods_admitted_total{how=\"new\"} 1",
			"sublet_pleg_errors_total":                      "sublet_pleg_errors_total{operation=\"inspect\"} 1\nsublet_pleg_errors_total{operation=\"list\"} 1",
			"sublet_pleg_inspect_duration_seconds_count":    "sublet_pleg_inspect_duration_seconds_count 1",
			"sublet_pleg_inspect_wait_seconds_count":        "sublet_pleg_inspect_wait_seconds_count 1",
			"kubelet_evented_pleg_connection_success_count": "kubelet_evented_pleg_connection_success_count 1",
			"kubelet_evented_pleg_connection_error_count":   "kubelet_evented_pleg_connection_error_count 1",
			"sublet_pleg_missed_events_total":               "sublet_pleg_missed_events_total 2",
			"kubelet_pleg_last_seen_seconds":                "kubelet_pleg_last_seen_seconds 9.466848e+08",
			"sublet_probe_delay_seconds_count":              "sublet_probe_delay_seconds_count 1",
			"sublet_eviction_duration_seconds_count":        "sublet_eviction_duration_seconds_count 1",
			"sublet_container_gc_duration_seconds_count":    "sublet_container_gc_duration_seconds_count 1",
			"sublet_image_gc_errors_total":                  "sublet_image_gc_errors_total 1",
			"sublet_image_gc_duration_seconds_count":        "sublet_image_gc_duration_seconds_count 1",
			"kubelet_pod_status_sync_duration_seconds_sum":  "kubelet_pod_status_sync_duration_seconds_sum 2",
			"sublet_pod_worker_panics_total":                "sublet_pod_worker_panics_total 1",
		} {
			assert.Equal(t, want, strings.Join(series(t, reg, name), "\n"), name)
		}
		m.SyncLoop().RuntimeReadyChanged(errors.New("x"))
		m.PLEG().StreamChanged(true, nil)
		m.Eviction().Evicted("", newPod("web"), time.Second, errors.New("x"))
		m.Probe().Probed(probe.ProbeRun{Pod: newPod("web"), Container: "c"}) // at no scheduled time
		assert.Equal(t, []string{"sublet_runtime_ready 0"}, series(t, reg, "sublet_runtime_ready"))
		assert.Equal(t, []string{"sublet_pleg_stream_open 1"}, series(t, reg, "sublet_pleg_stream_open"))
		assert.EqualValues(t, 1, samples(t, reg, "sublet_eviction_duration_seconds"), "the eviction failed")
		assert.EqualValues(t, 1, samples(t, reg, "sublet_probe_delay_seconds"))

		// A pod start takes minutes when an image is pulled.
		assert.Contains(t, scrape(t, reg), `kubelet_pod_start_duration_seconds_bucket{le="3600"}`)
	})
}

// The hook of a call leaves its context as it is.
func TestPodWorkers_ReturnsContext(t *testing.T) {
	m, _ := newMetrics(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	assert.Equal(t, ctx, m.PodWorkers().SyncStarted(ctx, podworkers.SyncCall{}))
}

// Only the step from Pending to Running is a start, however old the pod is.
func TestStatus_OtherPhasesAreNoStart(t *testing.T) {
	m, reg := newMetrics(t)
	p := newPod("web")
	podspec.AnnotateSource(p, "file", time.Now())
	st := m.Status()
	st.Changed(p, corev1.PodStatus{}, phase(corev1.PodRunning))
	st.Changed(p, phase(corev1.PodUnknown), phase(corev1.PodRunning))
	st.Changed(p, phase(corev1.PodPending), phase(corev1.PodFailed))
	assert.Zero(t, samples(t, reg, "kubelet_pod_start_duration_seconds"))
}

// The series of the duration of probes have no UID: they stay while another pod of the same
// namespace and name has them, and no longer.
func TestProbe_SharesSeriesByNamespaceAndName(t *testing.T) {
	m, reg := newMetrics(t)
	probed := func(namespace, name, uid string) {
		p := newPod(name)
		p.Namespace, p.UID = namespace, newPod(uid).UID
		m.Probe().Probed(probe.ProbeRun{Pod: p, Container: "c", Result: runtime.ProbeSuccess})
	}
	probed("default", "web", "finished")
	probed("default", "db", "other name")
	probed("other", "web", "other namespace")
	m.PodWorkers().PhaseChanged("uid-finished", podworkers.Terminated, podworkers.Finished, podworkers.Removed)
	left := strings.Join(series(t, reg, "prober_probe_duration_seconds_count"), "\n")
	assert.NotContains(t, left, `namespace="default",pod="web"`)
	assert.Contains(t, left, `namespace="default",pod="db"`)
	assert.Contains(t, left, `namespace="other",pod="web"`)
}

// A pod without a ready sandbox is not running.
func TestRegisterRuntimePods_CountsReadySandboxes(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, prom.RegisterRuntimePods(reg, func() []runtime.Pod {
		ready := runtime.Pod{Sandboxes: []runtime.Sandbox{{State: runtime.SandboxReady}}}
		return []runtime.Pod{ready, ready, {Sandboxes: []runtime.Sandbox{{State: runtime.SandboxNotReady}}}}
	}))
	assert.Equal(t, []string{"kubelet_running_pods 2"}, series(t, reg, "kubelet_running_pods"))
}

// Letters at the ends of the alphabet begin words too, and capitals in a row are one word.
func TestRuntimeCall_Words(t *testing.T) {
	m, reg := newMetrics(t)
	for rpc, op := range map[string]string{"DoAThing": "do_athing", "UseZFS": "use_zfs", "a{b": "a{b", "a@b": "a@b"} {
		m.RuntimeCall(rpc, time.Millisecond, nil)
		assert.Contains(t, strings.Join(series(t, reg, "kubelet_runtime_operations_total"), "\n"), `"`+op+`"`)
	}
}

// A pod can request a resource of any name: the reasons of rejections for those are one series.
func TestMetrics_RejectionsAreFewSeries(t *testing.T) {
	m, reg := newMetrics(t)
	for _, reason := range []string{"OutOfcpu", "OutOfexample.com/a", "OutOfexample.com/b", "OutOfhugepages-2Mi", "OutOfpods", "NodeAffinity"} {
		m.PodManager().Rejected(newPod("web"), reason, "message")
	}
	assert.Equal(t, []string{
		`kubelet_admission_rejections_total{reason="NodeAffinity"} 1`,
		`kubelet_admission_rejections_total{reason="OutOfExtendedResources"} 3`,
		`kubelet_admission_rejections_total{reason="OutOfcpu"} 1`,
		`kubelet_admission_rejections_total{reason="OutOfpods"} 1`,
	}, series(t, reg, "kubelet_admission_rejections_total"))
}
