package prom_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/syncloop"
)

// transportFunc is a transport of one function.
type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// callManagerHooks calls the hooks of the managers of resources, of the cluster and of starts.
func callManagerHooks(t *testing.T, m *prom.Metrics) {
	t.Helper()
	p := newPod("web")
	p.Spec.HostUsers = new(bool)
	for _, r := range []cpumanager.Request{{CPUs: 1}, {CPUs: 1, Err: errors.New("x"), Memory: 1}, {CPUs: 1, Memory: 1}, {CPUs: 1, Memory: 1, IsConfined: true}} {
		m.CPUManager().Requested(r)
	}
	m.Topology().PodAdmitted(p, podspec.Admitted(), 1500*time.Microsecond)
	m.Topology().PodAdmitted(p, podspec.Rejected("TopologyAffinityError", ""), time.Millisecond)
	m.Devices().Allocated(devices.Request{Pod: p, Resource: "vendor.example/gpu", Duration: time.Second})
	m.DevicePluginRegistered("vendor.example/gpu")
	m.Cgroups().Changed(cgroup.OperationCreate, time.Second, nil)
	for _, method := range []string{"List", "Get", "GetAllocatableResources"} {
		m.PodResourcesRequested("v1", method, errors.New("x"))
	}
	m.PodResourcesRequested("v1alpha1", "List", nil)
	m.PodResourcesRequested("v1", "Unknown", nil)
	for _, method := range []string{"ListPods", "GetPod", "WatchPods", "WatchPods", "Unknown"} {
		m.PodsAPIRequested("v1alpha1", method, "NotFound")
	}
	m.PodsAPIRequested("v1alpha1", "GetPod", "OK")
	m.PodsAPIStatesMissed(3)
	m.DRACallEnded("gpu.example", "/v1.DRAPlugin/NodePrepareResources", "OK", time.Second)
	m.ClaimsPrepared(p.UID, time.Second, nil)
	m.ClaimsReleased(p.UID, time.Second, errors.New("x"))
	m.ClientCertificateFailed()
	m.ServingCertificateFailed()
	m.ServingCertificateRenewed(time.Hour)
	m.PodManager().Recreated(p)
	m.RuntimeOperation(t.Context(), runtime.Operation{Type: runtime.OperationPullImage, Pod: p, ImageBytes: 7 << 20}, time.Second, nil)
	m.RuntimeOperation(t.Context(), runtime.Operation{Type: runtime.OperationCreateSandbox, Pod: p}, time.Second, nil)
	m.RuntimeOperation(t.Context(), runtime.Operation{Type: runtime.OperationCreateSandbox, Pod: p}, time.Second, errors.New("x"))
	m.RuntimeOperation(t.Context(), runtime.Operation{Type: runtime.OperationCreateSandbox, Pod: newPod("host")}, time.Second, nil)
	m.RuntimeOperation(t.Context(), runtime.Operation{Type: runtime.OperationCreateContainer, Pod: p}, time.Second, errors.New("x"))
	api := m.WrapTransport(transportFunc(func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: http.StatusOK}, nil }))
	_, err := api.RoundTrip(httptest.NewRequest(http.MethodGet, "https://api.example:6443/api", nil)) //nolint:bodyclose // there is none
	require.NoError(t, err)
}

func newNode() prom.Node {
	expires := time.Now().Add(time.Hour)
	return prom.Node{
		Name: "edge-1", KubeletVersion: "v1.37.2+sublet", CgroupVersion: 2,
		Workers: func() []podworkers.State {
			return []podworkers.State{
				{UID: "a"},
				{UID: "b", Static: true},
				{UID: "c", Phase: podworkers.Terminating},
				{UID: "d", Phase: podworkers.Finished, Static: true},
				{UID: "e", Phase: podworkers.Terminating, Orphan: true},
			}
		},
		DesiredUIDs:        func() map[types.UID]struct{} { return map[types.UID]struct{}{"a": {}, "b": {}} },
		MirrorPods:         func() int { return 1 },
		ClaimsInUse:        func() map[string]int { return map[string]int{"gpu.example": 2, "<any>": 2} },
		ClientCertificate:  func() time.Time { return expires },
		ServingCertificate: func() time.Time { return time.Time{} },
		CPUs:               func() (int, map[int]int) { return 3, map[int]int{0: 2, 1: 1} },
	}
}

// Alerts and dashboards for the kubelet find the node, its version and what its managers do under the kubelet's names.
func TestMetrics_ValuesOfManagersAndNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reg := newMetrics(t)
		callManagerHooks(t, m)
		require.NoError(t, prom.RegisterNode(reg, newNode()))
		for name, want := range map[string][]string{
			"kubelet_node_name":                                          {`kubelet_node_name{node="edge-1"} 1`},
			"kubelet_cgroup_version":                                     {"kubelet_cgroup_version 2"},
			"kubelet_mirror_pods":                                        {"kubelet_mirror_pods 1"},
			"kubelet_restarted_pods_total":                               {`kubelet_restarted_pods_total{static=""} 1`},
			"kubelet_certificate_manager_client_ttl_seconds":             {"kubelet_certificate_manager_client_ttl_seconds 3600"},
			"kubelet_certificate_manager_server_ttl_seconds":             {"kubelet_certificate_manager_server_ttl_seconds +Inf"},
			"kubelet_certificate_manager_client_expiration_renew_errors": {"kubelet_certificate_manager_client_expiration_renew_errors 1"},
			"kubelet_server_expiration_renew_errors":                     {"kubelet_server_expiration_renew_errors 1"},
			"kubelet_cpu_manager_pinning_requests_total":                 {"kubelet_cpu_manager_pinning_requests_total 4"},
			"kubelet_cpu_manager_pinning_errors_total":                   {"kubelet_cpu_manager_pinning_errors_total 1"},
			"kubelet_cpu_manager_shared_pool_size_millicores":            {"kubelet_cpu_manager_shared_pool_size_millicores 3000"},
			"kubelet_cpu_manager_exclusive_cpu_allocation_count":         {"kubelet_cpu_manager_exclusive_cpu_allocation_count 3"},
			"kubelet_cpu_manager_allocation_per_numa":                    {`kubelet_cpu_manager_allocation_per_numa{numa_node="0"} 2`, `kubelet_cpu_manager_allocation_per_numa{numa_node="1"} 1`},
			"kubelet_memory_manager_pinning_requests_total":              {"kubelet_memory_manager_pinning_requests_total 2"},
			"kubelet_memory_manager_pinning_errors_total":                {"kubelet_memory_manager_pinning_errors_total 1"},
			"kubelet_topology_manager_admission_requests_total":          {"kubelet_topology_manager_admission_requests_total 2"},
			"kubelet_topology_manager_admission_errors_total":            {"kubelet_topology_manager_admission_errors_total 1"},
			"kubelet_topology_manager_admission_duration_ms_sum":         {"kubelet_topology_manager_admission_duration_ms_sum 2.5"},
			"kubelet_device_plugin_registration_total":                   {`kubelet_device_plugin_registration_total{resource_name="vendor.example/gpu"} 1`},
			"kubelet_device_plugin_alloc_duration_seconds_count":         {`kubelet_device_plugin_alloc_duration_seconds_count{resource_name="vendor.example/gpu"} 1`},
			"kubelet_cgroup_manager_duration_seconds_count":              {`kubelet_cgroup_manager_duration_seconds_count{operation_type="create"} 1`},
			"kubelet_pod_resources_endpoint_requests_total":              {`kubelet_pod_resources_endpoint_requests_total{server_api_version="v1"} 4`, `kubelet_pod_resources_endpoint_requests_total{server_api_version="v1alpha1"} 1`},
			"kubelet_pod_resources_endpoint_requests_list":               {`kubelet_pod_resources_endpoint_requests_list{server_api_version="v1"} 1`, `kubelet_pod_resources_endpoint_requests_list{server_api_version="v1alpha1"} 1`},
			"kubelet_pod_resources_endpoint_errors_list":                 {`kubelet_pod_resources_endpoint_errors_list{server_api_version="v1"} 1`},
			"kubelet_pod_resources_endpoint_errors_get":                  {`kubelet_pod_resources_endpoint_errors_get{server_api_version="v1"} 1`},
			"kubelet_pod_resources_endpoint_errors_get_allocatable":      {`kubelet_pod_resources_endpoint_errors_get_allocatable{server_api_version="v1"} 1`},
			"kubelet_pod_requests_total":                                 {`kubelet_pod_requests_total{server_api_version="v1alpha1",status_code="NotFound"} 4`, `kubelet_pod_requests_total{server_api_version="v1alpha1",status_code="OK"} 1`},
			"kubelet_pod_requests_list_total":                            {`kubelet_pod_requests_list_total{server_api_version="v1alpha1",status_code="NotFound"} 1`},
			"kubelet_pod_requests_get_total":                             {`kubelet_pod_requests_get_total{server_api_version="v1alpha1",status_code="NotFound"} 1`, `kubelet_pod_requests_get_total{server_api_version="v1alpha1",status_code="OK"} 1`},
			"kubelet_pod_requests_watch_total":                           {`kubelet_pod_requests_watch_total{server_api_version="v1alpha1",status_code="NotFound"} 2`},
			"kubelet_pod_watch_events_dropped_total":                     {"kubelet_pod_watch_events_dropped_total 3"},
			"dra_operations_duration_seconds_count":                      {`dra_operations_duration_seconds_count{is_error="false",operation_name="PrepareResources"} 1`, `dra_operations_duration_seconds_count{is_error="true",operation_name="UnprepareResources"} 1`},
			"dra_grpc_operations_duration_seconds_count":                 {`dra_grpc_operations_duration_seconds_count{driver_name="gpu.example",grpc_status_code="OK",method_name="/v1.DRAPlugin/NodePrepareResources"} 1`},
			"dra_resource_claims_in_use":                                 {`dra_resource_claims_in_use{driver_name="<any>"} 2`, `dra_resource_claims_in_use{driver_name="gpu.example"} 2`},
			"kubelet_image_pull_duration_seconds_count":                  {`kubelet_image_pull_duration_seconds_count{image_size_in_bytes="0-10MB"} 1`},
			"kubelet_started_containers_total":                           {`kubelet_started_containers_total{container_type="container"} 1`},
			"kubelet_started_containers_errors_total":                    {`kubelet_started_containers_errors_total{code="CreateContainerError",container_type="container"} 1`},
			"kubelet_started_user_namespaced_pods_total":                 {"kubelet_started_user_namespaced_pods_total 2"},
			"kubelet_started_user_namespaced_pods_errors_total":          {"kubelet_started_user_namespaced_pods_errors_total 1"},
		} {
			assert.Equal(t, want, series(t, reg, name))
		}
		assert.Contains(t, series(t, reg, "kubernetes_build_info")[0], `git_version="v1.37.2+sublet"`)
		assert.Contains(t, series(t, reg, "kubernetes_build_info")[0], `major="1",minor="37"`)
		var working []string
		for _, line := range series(t, reg, "kubelet_working_pods") {
			if !strings.HasSuffix(line, " 0") {
				working = append(working, line)
			}
		}
		assert.Equal(t, []string{
			`kubelet_working_pods{config="desired",lifecycle="sync",static=""} 1`,
			`kubelet_working_pods{config="desired",lifecycle="sync",static="true"} 1`,
			`kubelet_working_pods{config="orphan",lifecycle="terminated",static="true"} 1`,
			`kubelet_working_pods{config="orphan",lifecycle="terminating",static=""} 1`,
			`kubelet_working_pods{config="runtime_only",lifecycle="terminating",static="unknown"} 1`,
		}, working)
		assert.Len(t, series(t, reg, "kubelet_working_pods"), 15, "those of a kubelet")
	})
}

// What is not given has no series: a program without a cluster has no certificates.
func TestRegisterNode_OnlyWhatIsGiven(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, prom.RegisterNode(reg, prom.Node{Name: "edge-1"}))
	families, err := reg.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)

	require.Error(t, prom.RegisterNode(nil, prom.Node{}))
	require.Error(t, prom.RegisterNode(reg, prom.Node{Name: "edge-1"}), "it is registered")
	require.Error(t, prom.RegisterNode(prometheus.NewRegistry(), prom.Node{Workers: func() []podworkers.State { return nil }}))
}

// KubeClientErrors is about the requests of a node, and watches last for minutes.
func TestWrapTransport_CountsRequests(t *testing.T) {
	m, reg := newMetrics(t)
	answers := map[string]int{"/ok": 200, "/busy": 503, "/watch": 200}
	transport := m.WrapTransport(transportFunc(func(r *http.Request) (*http.Response, error) {
		if code, ok := answers[r.URL.Path]; ok {
			return &http.Response{StatusCode: code}, nil
		}
		return nil, errors.New("connection refused")
	}))
	for _, path := range []string{"/ok", "/busy", "/watch?resourceVersion=1&watch=true", "/down"} {
		_, _ = transport.RoundTrip(httptest.NewRequest(http.MethodGet, "https://api:6443"+path, nil)) //nolint:bodyclose // there is none
	}
	assert.Equal(t, []string{
		`rest_client_requests_total{code="200",host="api:6443",method="GET"} 2`,
		`rest_client_requests_total{code="503",host="api:6443",method="GET"} 1`,
		`rest_client_requests_total{code="<error>",host="api:6443",method="GET"} 1`,
	}, series(t, reg, "rest_client_requests_total"))
	assert.EqualValues(t, 3, samples(t, reg, "rest_client_request_duration_seconds"))
}

// The starts of pods without what does not depend on the node: image pulls, which may overlap, and init containers.
func TestStatus_PodStartSLI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reg := newMetrics(t)
		start := func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.Now()
			changed := m.Status().Changed
			changed(p, corev1.PodStatus{}, phase(corev1.PodPending))
			begin := time.Now()
			pull := func(end time.Duration, duration time.Duration) {
				time.Sleep(time.Until(begin.Add(end)))
				m.RuntimeOperation(t.Context(), runtime.Operation{Type: runtime.OperationPullImage, Pod: p}, duration, nil)
			}
			pull(3*time.Second, 2*time.Second)
			pull(4*time.Second, 2*time.Second) // one of both was under way for 3 s
			pull(9*time.Second, time.Second)
			running := phase(corev1.PodRunning)
			running.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				StartedAt: metav1.NewTime(begin.Add(5 * time.Second)), FinishedAt: metav1.NewTime(begin.Add(7 * time.Second)),
			}}}}
			running.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, {}}
			changed(p, phase(corev1.PodPending), running)
			time.Sleep(time.Second)
			partly := *running.DeepCopy()
			running.ContainerStatuses[1] = running.ContainerStatuses[0]
			changed(p, partly, running)
			changed(p, running, running) // it has started
		}
		sums := func() []string {
			return append(series(t, reg, "kubelet_pod_start_total_duration_seconds_sum"), series(t, reg, "kubelet_pod_start_sli_duration_seconds_sum")...)
		}
		start(newPod("web"))
		assert.Equal(t, []string{"kubelet_pod_start_total_duration_seconds_sum 10", "kubelet_pod_start_sli_duration_seconds_sum 4"}, sums())

		stateful := newPod("db")
		stateful.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}}}
		start(stateful)
		assert.Equal(t, []string{"kubelet_pod_start_total_duration_seconds_sum 20", "kubelet_pod_start_sli_duration_seconds_sum 4"}, sums())

		static := newPod("static")
		podspec.AnnotateSource(static, "file", time.Now())
		start(static)
		known := newPod("known") // an agent has started it before
		known.Status.StartTime = &metav1.Time{Time: time.Now()}
		start(known)
		assert.Equal(t, []string{"kubelet_pod_start_total_duration_seconds_sum 20", "kubelet_pod_start_sli_duration_seconds_sum 4"}, sums())
	})
}

// Whatever fails in the sync that makes the sandbox of a pod with a user namespace counts once, and what fails later does not.
func TestRuntimeOperation_CountsUserNamespaces(t *testing.T) {
	failed := errors.New("x")
	for name, tc := range map[string]struct {
		ops  []runtime.OperationType // the last one fails with err
		err  error
		sync error
		want int
	}{
		"all is made":           {[]runtime.OperationType{runtime.OperationCreateSandbox, runtime.OperationStartContainer}, nil, nil, 0},
		"the sandbox":           {[]runtime.OperationType{runtime.OperationCreateSandbox}, failed, failed, 1},
		"an image":              {[]runtime.OperationType{runtime.OperationCreateSandbox, runtime.OperationPullImage}, failed, nil, 1},
		"a container":           {[]runtime.OperationType{runtime.OperationCreateSandbox, runtime.OperationCreateContainer}, failed, failed, 1},
		"a hook":                {[]runtime.OperationType{runtime.OperationCreateSandbox, runtime.OperationStartContainer, runtime.OperationPostStartHook}, failed, nil, 1},
		"the rest of the sync":  {[]runtime.OperationType{runtime.OperationCreateSandbox}, nil, failed, 1},
		"no sandbox was needed": {[]runtime.OperationType{runtime.OperationCreateContainer}, failed, failed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m, reg := newMetrics(t)
			p, own := newPod("web"), false
			p.Spec.HostUsers = &own
			for i, op := range tc.ops {
				var err error
				if i == len(tc.ops)-1 {
					err = tc.err
				}
				m.RuntimeOperation(t.Context(), runtime.Operation{Type: op, Pod: p}, time.Second, err)
			}
			m.PodWorkers().SyncEnded(t.Context(), podworkers.SyncCall{UID: p.UID}, time.Second, runtime.SyncResult{}, tc.sync)
			m.RuntimeOperation(t.Context(), runtime.Operation{Type: runtime.OperationStartContainer, Pod: p}, time.Second, failed)
			assert.Equal(t, []string{fmt.Sprint("kubelet_started_user_namespaced_pods_errors_total ", tc.want)}, series(t, reg, "kubelet_started_user_namespaced_pods_errors_total"))
		})
	}
}

// Containers are counted by type, and by the operation that failed.
func TestRuntimeOperation_CountsContainers(t *testing.T) {
	m, reg := newMetrics(t)
	p := newPod("web")
	p.Spec.InitContainers = []corev1.Container{{Name: "i"}}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}}
	for _, name := range []string{"i", "e", "c"} {
		for _, op := range []runtime.OperationType{runtime.OperationCreateContainer, runtime.OperationStartContainer, runtime.OperationKillContainer} {
			m.RuntimeOperation(t.Context(), runtime.Operation{Type: op, Pod: p, Container: name}, time.Second, nil)
		}
	}
	m.RuntimeOperation(t.Context(), runtime.Operation{Type: runtime.OperationStartContainer, Pod: p, Container: "i"}, time.Second, errors.New("x"))
	m.RuntimeOperation(t.Context(), runtime.Operation{Type: runtime.OperationPostStartHook, Pod: p, Container: "c"}, time.Second, errors.New("x"))
	m.RuntimeOperation(t.Context(), runtime.Operation{Type: runtime.OperationPullImage, Pod: p}, time.Second, errors.New("x"))
	assert.Equal(t, []string{
		`kubelet_started_containers_total{container_type="container"} 1`, `kubelet_started_containers_total{container_type="ephemeral_container"} 1`,
		`kubelet_started_containers_total{container_type="init_container"} 1`,
	}, series(t, reg, "kubelet_started_containers_total"))
	assert.Equal(t, []string{
		`kubelet_started_containers_errors_total{code="PostStartHookError",container_type="container"} 1`,
		`kubelet_started_containers_errors_total{code="RunContainerError",container_type="init_container"} 1`,
	}, series(t, reg, "kubelet_started_containers_errors_total"))
	assert.Zero(t, samples(t, reg, "kubelet_image_pull_duration_seconds"), "the pull failed")

	for bytes, size := range map[uint64]string{0: "N/A", 1: "0-10MB", 10 << 20: "0-10MB", 10<<20 + 1: "10MB-100MB", 1 << 30: "500MB-1GB", 99 << 30: "60GB-100GB", 101 << 30: "GT100GB"} {
		m.RuntimeOperation(t.Context(), runtime.Operation{Type: runtime.OperationPullImage, Pod: p, ImageBytes: bytes}, time.Second, nil)
		assert.Contains(t, strings.Join(series(t, reg, "kubelet_image_pull_duration_seconds_count"), "\n"), `"`+size+`"`)
	}
}

// As in a kubelet, the figure is that of the last pass of housekeeping.
func TestHousekeeper_CleanedDirectories(t *testing.T) {
	m, reg := newMetrics(t)
	cleaned := m.Housekeeper().StoreCleaned
	cleaned(syncloop.StorePodDirs, "a", nil)
	cleaned("cgroups", "a", errors.New("x"))
	cleaned(syncloop.StorePodDirs, "b", errors.New("x"))
	pass := func(in syncloop.Input) []string {
		m.SyncLoop().IterationEnded(in, time.Second)
		return append(series(t, reg, "kubelet_orphan_pod_cleaned_volumes"), series(t, reg, "kubelet_orphan_pod_cleaned_volumes_errors")...)
	}
	assert.Equal(t, []string{"kubelet_orphan_pod_cleaned_volumes 0", "kubelet_orphan_pod_cleaned_volumes_errors 0"}, pass(syncloop.InputEvent))
	assert.Equal(t, []string{"kubelet_orphan_pod_cleaned_volumes 2", "kubelet_orphan_pod_cleaned_volumes_errors 1"}, pass(syncloop.InputHousekeeping))
	assert.Equal(t, []string{"kubelet_orphan_pod_cleaned_volumes 0", "kubelet_orphan_pod_cleaned_volumes_errors 0"}, pass(syncloop.InputHousekeeping))
}

// A pod that fails because of a volume was admitted, and counts as rejected as in a kubelet.
func TestPodSync_CountsRejections(t *testing.T) {
	m, reg := newMetrics(t)
	m.PodSync().Rejected(newPod("web"), "VolumeAttachmentLimitExceeded", "no place")
	assert.Equal(t, []string{`kubelet_admission_rejections_total{reason="VolumeAttachmentLimitExceeded"} 1`}, series(t, reg, "kubelet_admission_rejections_total"))
}

// The statuses of pods tell which of them are active, and which resizes wait.
func TestRegisterPods_CountsActivePodsAndResizes(t *testing.T) {
	resize := func(name string, priority int32, c corev1.PodConditionType, reason string) *corev1.Pod {
		p := newPod(name)
		p.Spec.Priority = &priority
		p.Status.Conditions = []corev1.PodCondition{{Type: c, Status: corev1.ConditionTrue, Reason: reason}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		return p
	}
	static, ended := newPod("static"), newPod("ended")
	podspec.AnnotateSource(static, "file", time.Now())
	static.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, 2)
	ended.Status.Phase = corev1.PodFailed
	pods := []*corev1.Pod{
		static, ended, resize("a", 0, corev1.PodResizePending, corev1.PodReasonDeferred), resize("b", 0, corev1.PodResizePending, corev1.PodReasonDeferred),
		resize("c", 2000000000, corev1.PodResizePending, corev1.PodReasonInfeasible), resize("d", 1000000, corev1.PodResizePending, corev1.PodReasonInfeasible),
		resize("e", 5, corev1.PodResizePending, corev1.PodReasonDeferred), resize("f", -5, corev1.PodResizePending, corev1.PodReasonDeferred),
		resize("g", -5000, corev1.PodResizePending, corev1.PodReasonDeferred), resize("h", 0, corev1.PodResizeInProgress, ""),
	}
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, prom.RegisterPods(reg, func() []*corev1.Pod { return pods }))
	assert.Equal(t, []string{`kubelet_desired_pods{static=""} 9`, `kubelet_desired_pods{static="true"} 1`}, series(t, reg, "kubelet_desired_pods"))
	assert.Equal(t, []string{`kubelet_active_pods{static=""} 8`, `kubelet_active_pods{static="true"} 1`}, series(t, reg, "kubelet_active_pods"))
	assert.Equal(t, []string{"kubelet_managed_ephemeral_containers 2"}, series(t, reg, "kubelet_managed_ephemeral_containers"))
	assert.Equal(t, []string{"kubelet_pod_in_progress_resizes 1"}, series(t, reg, "kubelet_pod_in_progress_resizes"))
	assert.ElementsMatch(t, []string{
		`kubelet_pod_pending_resizes{priority_bucket="low",reason="deferred"} 1`, `kubelet_pod_pending_resizes{priority_bucket="medium",reason="deferred"} 1`,
		`kubelet_pod_pending_resizes{priority_bucket="normal",reason="deferred"} 2`, `kubelet_pod_pending_resizes{priority_bucket="very-low",reason="deferred"} 1`,
		`kubelet_pod_pending_resizes{priority_bucket="high",reason="infeasible"} 1`, `kubelet_pod_pending_resizes{priority_bucket="system-critical",reason="infeasible"} 1`,
	}, series(t, reg, "kubelet_pod_pending_resizes"))
}
