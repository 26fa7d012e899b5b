package prom

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// startMetrics are about the starts of pods and containers.
type startMetrics struct {
	total, sli          prometheus.Histogram
	pulls               *prometheus.HistogramVec
	containers, failing *prometheus.CounterVec
	users, usersFailing prometheus.Counter

	mu       sync.Mutex                // guards all below
	starting map[types.UID][]timeRange // pods of the API server that have not run yet, with their image pulls
	creating map[types.UID]struct{}    // pods with a user namespace whose sandbox is made by the sync that is under way
}

// timeRange is when an image was pulled.
type timeRange struct{ begin, end time.Time }

func newStart() *startMetrics {
	return &startMetrics{
		total: histogram("kubelet_pod_start_total_duration_seconds",
			"Time from the creation of a pod of the API server to when all its containers were first reported as running.", starts()),
		sli: histogram("kubelet_pod_start_sli_duration_seconds",
			"Time from the creation of a pod of the API server to when all its containers were first reported as running, without image pulls and init containers. Pods with other volumes than configuration and empty directories are left out.", starts()),
		pulls: histograms("kubelet_image_pull_duration_seconds", "Duration of successful image pulls, waits for others included, by size of the image.",
			buckets{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}, "image_size_in_bytes"),
		containers:   counters("kubelet_started_containers_total", "Attempts to create a container, by type.", "container_type"),
		failing:      counters("kubelet_started_containers_errors_total", "Containers that could not be created or started, by type and reason.", "container_type", "code"),
		users:        counter("kubelet_started_user_namespaced_pods_total", "Attempts to create the sandbox of a pod with a user namespace."),
		usersFailing: counter("kubelet_started_user_namespaced_pods_errors_total", "Attempts to create the sandbox of a pod with a user namespace that failed, or whose sync failed after that."),
		starting:     map[types.UID][]timeRange{},
		creating:     map[types.UID]struct{}{},
	}
}

func (s *startMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{s.total, s.sli, s.pulls, s.containers, s.failing, s.users, s.usersFailing}
}

// RuntimeOperation is the hook for operations of the runtime, for cri.Hooks.OperationEnded.
func (m *Metrics) RuntimeOperation(_ context.Context, op runtime.Operation, duration time.Duration, err error) {
	s := m.start
	if users := op.Pod.Spec.HostUsers; op.Type == runtime.OperationCreateSandbox && users != nil && !*users {
		s.users.Inc()
		s.create(op.Pod.UID)
	}
	if err != nil {
		s.created(op.Pod.UID, err)
	}
	var reason string
	switch op.Type {
	case runtime.OperationPullImage:
		s.addPull(op.Pod.UID, duration)
		if err == nil {
			s.pulls.WithLabelValues(imageSize(op.ImageBytes)).Observe(duration.Seconds())
		}
		return
	case runtime.OperationCreateContainer:
		s.containers.WithLabelValues(containerType(op.Pod, op.Container)).Inc()
		reason = "CreateContainerError"
	case runtime.OperationStartContainer:
		reason = "RunContainerError"
	case runtime.OperationPostStartHook:
		reason = "PostStartHookError"
	default:
		return
	}
	if err != nil {
		s.failing.WithLabelValues(containerType(op.Pod, op.Container), reason).Inc()
	}
}

func containerType(pod *corev1.Pod, name string) string {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return "init_container"
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return "ephemeral_container"
		}
	}
	return "container"
}

// imageSize returns the label of the size of an image, as a kubelet has it.
func imageSize(bytes uint64) string {
	const mega, giga = 1 << 20, 1 << 30
	if bytes == 0 {
		return "N/A"
	}
	for _, class := range []struct {
		max   uint64
		label string
	}{
		{10 * mega, "0-10MB"},
		{100 * mega, "10MB-100MB"},
		{500 * mega, "100MB-500MB"},
		{giga, "500MB-1GB"},
		{5 * giga, "1GB-5GB"},
		{10 * giga, "5GB-10GB"},
		{20 * giga, "10GB-20GB"},
		{30 * giga, "20GB-30GB"},
		{40 * giga, "30GB-40GB"},
		{60 * giga, "40GB-60GB"},
		{100 * giga, "60GB-100GB"},
	} {
		if bytes <= class.max {
			return class.label
		}
	}
	return "GT100GB"
}

// addPull records an image pull of a pod that has ended now.
func (s *startMetrics) addPull(uid types.UID, duration time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pulls, ok := s.starting[uid]; ok {
		now := time.Now()
		s.starting[uid] = append(pulls, timeRange{now.Add(-duration), now})
	}
}

// observe follows the statuses of a pod from its first one, which makes it known here, to when it runs.
func (s *startMetrics) observe(pod *corev1.Pod, previous, current *corev1.PodStatus) {
	s.mu.Lock()
	pulls, ok := s.starting[pod.UID]
	if !ok && previous.Phase == "" && current.Phase == corev1.PodPending && pod.Status.StartTime.IsZero() && !podspec.IsStatic(pod) && !pod.CreationTimestamp.IsZero() {
		s.starting[pod.UID] = nil
	}
	isRunning := ok && allRunning(current)
	if isRunning || podspec.IsTerminalPhase(current.Phase) {
		delete(s.starting, pod.UID)
	}
	s.mu.Unlock()
	if !isRunning {
		return
	}
	total := time.Since(pod.CreationTimestamp.Time)
	s.total.Observe(max(0, total).Seconds())
	if !hasState(pod) {
		s.sli.Observe(max(0, total-pullTime(pulls)-initTime(current)).Seconds())
	}
}

// forget drops a pod that has finished.
func (s *startMetrics) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.starting, uid)
	delete(s.creating, uid)
}

// create records that a sync makes the sandbox of a pod with a user namespace.
func (s *startMetrics) create(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.creating[uid] = struct{}{}
}

// created records that this sync has ended, or that a part of it has failed: it counts once, as with a kubelet.
func (s *startMetrics) created(uid types.UID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.creating[uid]; !ok {
		return
	}
	delete(s.creating, uid)
	if err != nil {
		s.usersFailing.Inc()
	}
}

// allRunning reports whether all regular containers run.
func allRunning(status *corev1.PodStatus) bool {
	return len(status.ContainerStatuses) > 0 &&
		!slices.ContainsFunc(status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running == nil })
}

// hasState reports whether a pod has volumes that the service level indicator of Kubernetes leaves out.
func hasState(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Projected == nil
	})
}

// pullTime returns for how long at least one image was being pulled.
func pullTime(pulls []timeRange) (total time.Duration) {
	slices.SortFunc(pulls, func(a, b timeRange) int { return cmp.Or(a.begin.Compare(b.begin), a.end.Compare(b.end)) })
	var until time.Time
	for _, p := range pulls {
		if p.begin.Before(until) {
			p.begin = until
		}
		if p.end.After(p.begin) {
			total += p.end.Sub(p.begin)
			until = p.end
		}
	}
	return total
}

// initTime returns how long the init containers have run that have ended.
func initTime(status *corev1.PodStatus) (total time.Duration) {
	for i := range status.InitContainerStatuses {
		if end := status.InitContainerStatuses[i].State.Terminated; end != nil && !end.StartedAt.IsZero() {
			total += max(0, end.FinishedAt.Sub(end.StartedAt.Time))
		}
	}
	return total
}
