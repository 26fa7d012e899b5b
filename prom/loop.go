package prom

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/syncloop"
)

type loopMetrics struct {
	iterations         *prometheus.HistogramVec
	ready              prometheus.Gauge
	admitted, rejected *prometheus.CounterVec
	orphans            prometheus.Counter
	cleanups           *prometheus.CounterVec
	preemptions        *prometheus.CounterVec
	recreated          *prometheus.CounterVec

	perPod              prometheus.Histogram
	cleaned, notCleaned prometheus.Gauge
	mu                  sync.Mutex // guards dirs
	dirs                [2]int     // pods whose directories were to be removed since the last housekeeping, and of these those where that failed
}

func newLoop() *loopMetrics {
	return &loopMetrics{
		iterations: histograms("sublet_sync_loop_duration_seconds", "Duration of sync loop iterations, by input.", quick(), "input"),
		ready:      gauge("sublet_runtime_ready", "1 while the container runtime is ready for pods."),
		admitted:   counters("sublet_pods_admitted_total", "Pods admitted: new, or adopted because they already ran.", "how"),
		rejected:   counters("kubelet_admission_rejections_total", "Pods rejected at admission, by reason.", "reason"),
		orphans:    counter("kubelet_orphaned_runtime_pods_total", "Pods found in the runtime that no source contains."),
		cleanups: counters("sublet_orphaned_resources_total",
			"Removals of resources of orphaned pods, by store and result.", "store", "result"),
		preemptions: counters("kubelet_preemptions", "Pods preempted in favour of critical ones, by the first resource that these lacked.", "preemption_signal"),
		recreated:   counters("kubelet_restarted_pods_total", "Pods that were started again because they were desired again under the same UID.", "static"),
		perPod:      histogram("kubelet_containers_per_pod_count", "Containers of a pod that was admitted or adopted, without those of initialization.", buckets{1, 2, 4, 8, 16}),
		cleaned:     gauge("kubelet_orphan_pod_cleaned_volumes", "Pods that are not desired any more and whose directories were to be removed up to the last housekeeping, since the one before."),
		notCleaned:  gauge("kubelet_orphan_pod_cleaned_volumes_errors", "Pods that are not desired any more and whose directories could not be removed up to the last housekeeping, since the one before."),
	}
}

func (l *loopMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{l.iterations, l.ready, l.admitted, l.rejected, l.orphans, l.cleanups, l.preemptions, l.recreated, l.perPod, l.cleaned, l.notCleaned}
}

// SyncLoop returns the hooks of a syncloop.Loop.
func (m *Metrics) SyncLoop() syncloop.Hooks {
	return syncloop.Hooks{
		IterationEnded: func(in syncloop.Input, duration time.Duration) {
			m.loop.iterations.WithLabelValues(string(in)).Observe(duration.Seconds())
			if in == syncloop.InputHousekeeping {
				m.loop.endSweep()
			}
		},
		RuntimeReadyChanged: func(err error) { m.loop.ready.Set(boolValue(err == nil)) },
	}
}

// Housekeeper returns the hooks of a syncloop.Housekeeper.
func (m *Metrics) Housekeeper() syncloop.HousekeeperHooks {
	return syncloop.HousekeeperHooks{
		OrphanFound: func(runtime.Pod) { m.loop.orphans.Inc() },
		StoreCleaned: func(store string, _ types.UID, err error) {
			m.loop.cleanups.WithLabelValues(store, result(err)).Inc()
			if store == syncloop.StorePodDirs {
				m.loop.countDir(err)
			}
		},
	}
}

// admit counts a pod that is admitted or adopted.
func (l *loopMetrics) admit(how string, pod *corev1.Pod) {
	l.admitted.WithLabelValues(how).Inc()
	l.perPod.Observe(float64(len(pod.Spec.Containers)))
}

// reject counts a pod that is rejected.
func (l *loopMetrics) reject(_ *corev1.Pod, reason, _ string) {
	l.rejected.WithLabelValues(rejection(reason)).Inc()
}

// countDir counts a pod whose directory was to be removed.
func (l *loopMetrics) countDir(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dirs[0]++
	if err != nil {
		l.dirs[1]++
	}
}

// endSweep sets the gauges to what was counted since the last call.
func (l *loopMetrics) endSweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cleaned.Set(float64(l.dirs[0]))
	l.notCleaned.Set(float64(l.dirs[1]))
	l.dirs = [2]int{}
}

// PodSync returns the hooks of a podsync.Syncer.
func (m *Metrics) PodSync() podsync.Hooks {
	return podsync.Hooks{
		Rejected: m.loop.reject,
	}
}

// static is the value of the label of that name.
func static(pod *corev1.Pod) string {
	if podspec.IsStatic(pod) {
		return "true"
	}
	return ""
}

// PodManager returns the hooks of a syncloop.PodManager.
func (m *Metrics) PodManager() syncloop.PodManagerHooks {
	l := m.loop
	return syncloop.PodManagerHooks{
		Admitted:  func(pod *corev1.Pod) { l.admit("new", pod) },
		Adopted:   func(pod *corev1.Pod) { l.admit("adopted", pod) },
		Rejected:  l.reject,
		Recreated: func(pod *corev1.Pod) { l.recreated.WithLabelValues(static(pod)).Inc() },
		Preempted: func(_, _ *corev1.Pod, resource corev1.ResourceName) {
			l.preemptions.WithLabelValues(string(resource)).Inc()
		},
	}
}

// rejection returns the label of a reason. As with a kubelet, resources other than the node's own have one for all: a pod can
// request any name, and each would be a series.
func rejection(reason string) string {
	lacked, ok := strings.CutPrefix(reason, "OutOf")
	switch corev1.ResourceName(lacked) {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
		return reason
	default:
		if ok {
			return "OutOfExtendedResources"
		}
		return reason
	}
}
