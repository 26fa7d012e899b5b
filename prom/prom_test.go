package prom_test

import (
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/syncloop"
)

var update = flag.Bool("update", false, "write the table of docs/metrics.md")

func newPod(name string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Name, p.Namespace, p.UID = name, "default", types.UID("uid-"+name)
	return p
}

func newMetrics(t *testing.T) (*prom.Metrics, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	m, err := prom.New(reg)
	require.NoError(t, err)
	return m, reg
}

func phase(p corev1.PodPhase) corev1.PodStatus { return corev1.PodStatus{Phase: p} }

// callAllHooks calls each hook so that each metric has a series.
func callAllHooks(t *testing.T, m *prom.Metrics, reg prometheus.Registerer) {
	t.Helper()
	p := newPod("web")
	podspec.AnnotateSource(p, "file", time.Now())
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue}}
	pl := m.PLEG()
	for range 2 {
		pl.Relisted(time.Millisecond, 1, 1, nil)
	}
	pl.Relisted(time.Second, 0, 0, errors.New("x"))
	pl.Inspected(p.UID, 0, time.Millisecond, errors.New("x"))
	pl.StreamChanged(true, nil)
	pl.StreamChanged(false, errors.New("x"))
	pl.RuntimeEventReceived(p.UID)
	pl.RuntimeEventsMissed(2)
	w := m.PodWorkers()
	call := podworkers.SyncCall{Pod: p, UID: p.UID, RequestedAt: time.Now()}
	w.SyncEnded(w.SyncStarted(t.Context(), call), call, time.Second, runtime.SyncResult{}, errors.New("x"))
	w.SyncPanicked(call, "x")
	w.PhaseChanged(p.UID, podworkers.Syncing, podworkers.Terminating, podworkers.Removed)
	st := m.Status()
	st.Changed(p, phase(corev1.PodPending), phase(corev1.PodRunning))
	st.Changed(p, phase(corev1.PodRunning), ended("c", 0, 1, "Error"))
	st.Sent(p, time.Second, time.Second, nil)
	st.Sent(p, time.Second, time.Second, errors.New("x"))
	m.Probe().Probed(probe.ProbeRun{Pod: p, Container: "c", Type: probe.Liveness, Result: runtime.ProbeSuccess, ScheduledAt: time.Now(), StartedAt: time.Now(), Duration: time.Second})
	s := m.Sources()
	s.SetReceived("file", 3, 1, time.Millisecond)
	s.ChangeDelivered(podsource.Add, "file", 3)
	s.SourceFailed("file", podsource.SourceError{})
	l := m.SyncLoop()
	l.IterationEnded(syncloop.InputChange, time.Millisecond)
	l.RuntimeReadyChanged(nil)
	ph := m.PodManager()
	ph.Admitted(p)
	ph.Adopted(p)
	ph.Rejected(p, "OutOfcpu", "")
	ph.Preempted(p, p, corev1.ResourceCPU)
	hk := m.Housekeeper()
	hk.OrphanFound(runtime.Pod{})
	hk.StoreCleaned("cgroups", p.UID, errors.New("x"))
	gc := m.ContainerGC()
	gc.Removed(containergc.Removal{}, time.Second, nil)
	gc.Removed(containergc.Removal{Container: &runtime.Container{}}, time.Second, errors.New("x"))
	gc.Collected(containergc.Result{Duration: time.Second}, nil)
	lr := m.LogRotation()
	lr.Rotated("c1", 100, time.Second, nil)
	lr.Rotated("c1", 100, time.Second, errors.New("x"))
	m.RuntimeCall("RunPodSandbox", time.Second, errors.New("x"))
	e := m.Eviction()
	e.Measured(time.Millisecond, nil)
	e.Evicting("memory.available", nil, runtime.Termination{})
	e.Evicted("memory.available", p, time.Second, nil)
	e.ConditionsChanged([]corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}})
	i := m.ImageGC()
	i.Removed(runtime.Image{}, imagegc.ReasonDiskUsage, time.Second, nil)
	i.Removed(runtime.Image{}, imagegc.ReasonMaxAge, time.Second, nil)
	i.Removed(runtime.Image{}, imagegc.ReasonMaxAge, time.Second, errors.New("x"))
	i.Collected(imagegc.Result{BytesFreed: 7, Duration: time.Second}, nil)
	callManagerHooks(t, m)
	callStorageHooks(m)
	registerAll(t, m, reg, p)
}

// AG-5: docs/metrics.md lists every metric as it is scraped.
func TestMetrics_TableInDocs(t *testing.T) {
	m, reg := newMetrics(t)
	callAllHooks(t, m, reg)
	families, err := reg.Gather()
	require.NoError(t, err)
	var rows []string
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		slices.Sort(labels)
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |",
			f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, " "), f.GetHelp()))
	}
	table := "| metric | type | labels | description |\n|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n"

	const file = "../docs/metrics.md"
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	begin, end := "<!-- table -->\n", "<!-- end of table -->\n"
	head, rest, ok := strings.Cut(string(page), begin)
	require.True(t, ok, "no place for the table")
	_, tail, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := head + begin + table + end + tail
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o600))
		return
	}
	assert.Equal(t, want, string(page), "update it with go test ./prom -update")

	descs := make(chan *prometheus.Desc, 1000)
	r := &registerer{}
	m, err = prom.New(r)
	require.NoError(t, err)
	registerAll(t, m, r, newPod("web"))
	for _, c := range r.collectors {
		c.Describe(descs)
	}
	assert.Len(t, rows, len(descs), "a metric without a series here, or with a hook that no test calls")
}

// registerer keeps the collectors that are registered.
type registerer struct {
	prometheus.Registerer
	collectors []prometheus.Collector
}

func (r *registerer) Register(c prometheus.Collector) error {
	r.collectors = append(r.collectors, c)
	return nil
}

// Metrics of the kubelet have its names and labels.
func TestMetrics_NamesAndLabels(t *testing.T) {
	m, reg := newMetrics(t)
	callAllHooks(t, m, reg)
	for name, want := range map[string]string{
		"kubelet_runtime_operations_total":        `kubelet_runtime_operations_total{operation_type="run_podsandbox"} 1`,
		"kubelet_runtime_operations_errors_total": `kubelet_runtime_operations_errors_total{operation_type="run_podsandbox"} 1`,
		"kubelet_started_pods_total":              `kubelet_started_pods_total 1`,
		"kubelet_started_pods_errors_total":       `kubelet_started_pods_errors_total 1`,
		"kubelet_evictions":                       `kubelet_evictions{eviction_signal="memory.available"} 1`,
		"kubelet_admission_rejections_total":      `kubelet_admission_rejections_total{reason="OutOfcpu"} 1`,
		"kubelet_desired_pods":                    "kubelet_desired_pods{static=\"\"} 0\nkubelet_desired_pods{static=\"true\"} 1",
		"kubelet_running_pods":                    "kubelet_running_pods 0",
		"kubelet_image_garbage_collected_total":   "kubelet_image_garbage_collected_total{reason=\"age\"} 1\nkubelet_image_garbage_collected_total{reason=\"space\"} 1",
		"prober_probe_total":                      `prober_probe_total{container="c",namespace="default",pod="web",pod_uid="uid-web",probe_type="Liveness",result="successful"} 1`,
		"sublet_pod_terminations_total":           `sublet_pod_terminations_total{cause="removed"} 1`,
		"sublet_source_changes_total":             `sublet_source_changes_total{op="ADD",source="file"} 3`,
		"kubelet_orphaned_runtime_pods_total":     `kubelet_orphaned_runtime_pods_total 1`,
		"sublet_orphaned_resources_total":         `sublet_orphaned_resources_total{result="error",store="cgroups"} 1`,
		"sublet_container_gc_total":               "sublet_container_gc_total{kind=\"container\",result=\"error\"} 1\nsublet_container_gc_total{kind=\"sandbox\",result=\"success\"} 1",
		"sublet_log_rotations_total":              "sublet_log_rotations_total{result=\"error\"} 1\nsublet_log_rotations_total{result=\"success\"} 1",
		"sublet_log_rotated_bytes_total":          `sublet_log_rotated_bytes_total 100`,
		"sublet_node_condition":                   `sublet_node_condition{condition="MemoryPressure"} 1`,
		"sublet_pleg_stream_open":                 `sublet_pleg_stream_open 0`,
		"sublet_pod_worker_active":                `sublet_pod_worker_active{operation_type="sync"} 0`,
		"sublet_image_gc_freed_bytes_total":       `sublet_image_gc_freed_bytes_total 7`,
	} {
		assert.Equal(t, want, strings.Join(series(t, reg, name), "\n"))
	}
	for name, want := range map[string]uint64{
		"kubelet_pleg_relist_duration_seconds": 3, "kubelet_pleg_relist_interval_seconds": 2, "kubelet_pod_start_duration_seconds": 1,
		"kubelet_pod_worker_duration_seconds": 1, "kubelet_pod_status_sync_duration_seconds": 1, "prober_probe_duration_seconds": 1,
		"kubelet_runtime_operations_duration_seconds": 1,
	} {
		assert.Equal(t, want, samples(t, reg, name), name)
	}
}

// series returns the lines of a metric as it is scraped.
func series(t *testing.T, reg *prometheus.Registry, name string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(scrape(t, reg)) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func samples(t *testing.T, reg *prometheus.Registry, name string) (n uint64) {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				n += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return n
}

func scrape(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code, w.Body.String())
	return w.Body.String()
}

func TestMetrics_ScrapeIsWellFormed(t *testing.T) {
	m, reg := newMetrics(t)
	callAllHooks(t, m, reg)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(scrape(t, reg)))
	require.NoError(t, err)
	assert.Greater(t, len(families), 40)
	for name, f := range families {
		assert.NotEmpty(t, f.GetHelp(), name)
		assert.Regexp(t, "^(kubelet|prober|sublet|dra|rest_client|kubernetes|storage|volume|csi)_", name)
	}
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "sublet_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// AG-6: two agents in one process do not share metrics.
func TestMetrics_TwoRegistries(t *testing.T) {
	one, regOne := newMetrics(t)
	_, regTwo := newMetrics(t)
	one.PLEG().RuntimeEventReceived("x")
	assert.Equal(t, []string{"sublet_pleg_runtime_events_total 1"}, series(t, regOne, "sublet_pleg_runtime_events_total"))
	assert.Equal(t, []string{"sublet_pleg_runtime_events_total 0"}, series(t, regTwo, "sublet_pleg_runtime_events_total"))

	_, err := prom.New(regOne)
	require.Error(t, err, "one registry cannot distinguish two agents")
	two, err := prom.New(prometheus.WrapRegistererWith(prometheus.Labels{"agent": "two"}, prometheus.NewRegistry()))
	require.NoError(t, err)
	two.PLEG().RuntimeEventReceived("x")
	assert.Equal(t, []string{"sublet_pleg_runtime_events_total 1"}, series(t, regOne, "sublet_pleg_runtime_events_total"))
}

func TestNew_RejectsInvalidArguments(t *testing.T) {
	_, err := prom.New(nil)
	require.Error(t, err)
	reg := prometheus.NewRegistry()
	require.Error(t, prom.RegisterPods(reg, nil))
	require.Error(t, prom.RegisterRuntimePods(reg, nil))
	require.Error(t, prom.RegisterPods(nil, func() []*corev1.Pod { return nil }))
	require.NoError(t, prom.RegisterPods(reg, func() []*corev1.Pod { return nil }))
	require.Error(t, prom.RegisterRuntimePods(reg, func() []runtime.Pod { return nil }), "both count the same")
}

// Series of a finished pod are dropped, except those shared with its successor of
// the same name.
func TestProbe_DropsSeriesOfFinishedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reg := newMetrics(t)
		probed := func(uid types.UID, probeType probe.ProbeType, r runtime.ProbeResult) {
			p := newPod("web")
			p.UID = uid
			m.Probe().Probed(probe.ProbeRun{Pod: p, Container: "c", Type: probeType, Result: r})
		}
		probed("old", probe.Liveness, runtime.ProbeSuccess)
		probed("old", probe.Liveness, runtime.ProbeFailure)
		probed("old", probe.Readiness, runtime.ProbeUnknown)
		probed("new", probe.Liveness, runtime.ProbeSuccess)
		require.Len(t, series(t, reg, "prober_probe_total"), 4)
		assert.EqualValues(t, 4, samples(t, reg, "prober_probe_duration_seconds"))

		m.PodWorkers().PhaseChanged("old", podworkers.Terminated, podworkers.Finished, podworkers.Removed)
		assert.Equal(t,
			[]string{`prober_probe_total{container="c",namespace="default",pod="web",pod_uid="new",probe_type="Liveness",result="successful"} 1`},
			series(t, reg, "prober_probe_total"))
		assert.EqualValues(t, 3, samples(t, reg, "prober_probe_duration_seconds"))

		time.Sleep(30 * time.Minute)
		probed("new", probe.Liveness, runtime.ProbeSuccess)
		time.Sleep(45 * time.Minute)
		assert.Len(t, series(t, reg, "prober_probe_total"), 1)
		time.Sleep(16 * time.Minute)
		assert.Empty(t, series(t, reg, "prober_probe_total"), "no hook reported the pod finished")
		assert.Zero(t, samples(t, reg, "prober_probe_duration_seconds"))
	})
}

func TestStatus_PodStartDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reg := newMetrics(t)
		p := newPod("web")
		podspec.AnnotateSource(p, "file", time.Now())
		time.Sleep(7 * time.Second)
		st := m.Status()
		st.Changed(p, corev1.PodStatus{}, phase(corev1.PodPending))
		st.Changed(p, phase(corev1.PodPending), phase(corev1.PodPending))
		st.Changed(p, phase(corev1.PodPending), phase(corev1.PodRunning))
		st.Changed(newPod("adopted"), corev1.PodStatus{}, phase(corev1.PodRunning))
		st.Changed(p, phase(corev1.PodRunning), phase(corev1.PodSucceeded))
		assert.EqualValues(t, 1, samples(t, reg, "kubelet_pod_start_duration_seconds"))
		assert.Contains(t, scrape(t, reg), "kubelet_pod_start_duration_seconds_sum 7\n")
		assert.Len(t, series(t, reg, "sublet_pod_phase_changes_total"), 3)
	})
}

func TestRegisterPods_Counts(t *testing.T) {
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	exited := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
	a, b := newPod("a"), newPod("b")
	a.Status.InitContainerStatuses = []corev1.ContainerStatus{exited}
	a.Status.ContainerStatuses = []corev1.ContainerStatus{running, running, {}}
	b.Status.ContainerStatuses = []corev1.ContainerStatus{exited}
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, prom.RegisterPods(reg, func() []*corev1.Pod { return []*corev1.Pod{a, b} }))
	assert.Equal(t, []string{"kubelet_running_pods 1"}, series(t, reg, "kubelet_running_pods"))
	assert.Contains(t, series(t, reg, "kubelet_running_containers"), `kubelet_running_containers{container_state="running"} 2`)
	assert.Contains(t, series(t, reg, "kubelet_running_containers"), `kubelet_running_containers{container_state="exited"} 2`)

	reg = prometheus.NewPedanticRegistry()
	require.NoError(t, prom.RegisterRuntimePods(reg, func() []runtime.Pod {
		return []runtime.Pod{{
			Sandboxes:  []runtime.Sandbox{{State: runtime.SandboxReady}},
			Containers: []runtime.Container{{State: runtime.Created}, {State: runtime.Running}, {State: runtime.Exited}, {State: runtime.Unknown}, {State: runtime.Running}},
		}, {Sandboxes: []runtime.Sandbox{{}}}}
	}))
	assert.Equal(t, []string{"kubelet_running_pods 1"}, series(t, reg, "kubelet_running_pods"))
	assert.Equal(t, []string{
		`kubelet_running_containers{container_state="created"} 1`, `kubelet_running_containers{container_state="exited"} 1`,
		`kubelet_running_containers{container_state="running"} 2`, `kubelet_running_containers{container_state="unknown"} 1`,
	}, series(t, reg, "kubelet_running_containers"))
}

func TestRuntimeCall_OperationNames(t *testing.T) {
	m, reg := newMetrics(t)
	want := map[string]string{
		"Version": "version", "Status": "status", "RunPodSandbox": "run_podsandbox", "StopPodSandbox": "stop_podsandbox",
		"RemovePodSandbox": "remove_podsandbox", "PodSandboxStatus": "podsandbox_status", "ListPodSandbox": "list_podsandbox",
		"CreateContainer": "create_container", "StartContainer": "start_container", "StopContainer": "stop_container",
		"RemoveContainer": "remove_container", "ListContainers": "list_containers", "ContainerStatus": "container_status",
		"UpdateContainerResources": "update_container", "ReopenContainerLog": "reopen_container_log", "ExecSync": "exec_sync",
		"PullImage": "pull_image", "ImageFsInfo": "image_fs_info", "ListPodSandboxStats": "list_podsandbox_stats",
		"GetContainerEvents": "get_container_events", "RuntimeConfig": "runtime_config",
		"UpdatePodSandboxResources": "update_podsandbox_resources",
	}
	for rpc := range want {
		m.RuntimeCall(rpc, time.Millisecond, nil)
	}
	lines := strings.Join(series(t, reg, "kubelet_runtime_operations_total"), "\n")
	for rpc, op := range want {
		assert.Contains(t, lines, fmt.Sprintf("%q", op), rpc)
	}
}

// The kubelet counts a streamed list as the list, and a runtime that cannot stream it once.
func TestRuntimeCall_CountsStreamedLists(t *testing.T) {
	m, reg := newMetrics(t)
	m.RuntimeCall("StreamPodSandboxes", time.Millisecond, nil)
	m.RuntimeCall("StreamContainers", time.Millisecond, fmt.Errorf("x: %w", runtime.ErrUnsupported))
	m.RuntimeCall("ListContainers", time.Millisecond, nil)
	m.RuntimeCall("StreamImages", time.Millisecond, nil)
	m.RuntimeCall("StreamContainerStats", time.Millisecond, nil)
	assert.Equal(t, []string{
		`kubelet_runtime_operations_total{operation_type="list_container_stats"} 1`,
		`kubelet_runtime_operations_total{operation_type="list_containers"} 1`,
		`kubelet_runtime_operations_total{operation_type="list_images"} 1`,
		`kubelet_runtime_operations_total{operation_type="list_podsandbox"} 1`,
	}, series(t, reg, "kubelet_runtime_operations_total"))
	assert.Empty(t, series(t, reg, "kubelet_runtime_operations_errors_total"))
}
