package prom

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// RegisterPods registers the numbers of desired, active and running pods and of containers,
// counted from pod statuses. pods is called on each scrape, from any goroutine, and
// must not block. Agent.Pods can be used.
func RegisterPods(reg prometheus.Registerer, pods func() []*corev1.Pod) error {
	if pods == nil {
		return errors.New("prom: nil pods")
	}
	return register(reg, &counts{running: newRunning(), fromStatus: newFromStatus(), count: func(n *podCounts) {
		for _, pod := range pods() {
			n.status(pod)
		}
	}})
}

// RegisterRuntimePods registers the numbers of running pods and containers, counted
// from observed state, for programs without a status manager. pods is called on
// each scrape, from any goroutine, and must not block. It cannot be combined with
// RegisterPods on one Registerer, because both register the same metrics.
func RegisterRuntimePods(reg prometheus.Registerer, pods func() []runtime.Pod) error {
	if pods == nil {
		return errors.New("prom: nil pods")
	}
	return register(reg, &counts{running: newRunning(), count: func(n *podCounts) {
		for _, pod := range pods() {
			n.observed(&pod)
		}
	}})
}

func register(reg prometheus.Registerer, c *counts) error {
	if reg == nil {
		return errors.New("prom: nil Registerer")
	}
	if err := reg.Register(c); err != nil {
		return fmt.Errorf("prom: register pod counts: %w", err)
	}
	return nil
}

// counts is a collector that counts pods on each scrape.
type counts struct {
	running    [2]*prometheus.Desc // pods, containers
	fromStatus []*prometheus.Desc  // desired and active pods, ephemeral containers, resizes; nil: statuses are not known
	count      func(*podCounts)
}

func newRunning() [2]*prometheus.Desc {
	return [2]*prometheus.Desc{
		prometheus.NewDesc("kubelet_running_pods", "Running pods.", nil, nil),
		prometheus.NewDesc("kubelet_running_containers", "Containers, by state.", []string{"container_state"}, nil),
	}
}

func newFromStatus() []*prometheus.Desc {
	return []*prometheus.Desc{
		prometheus.NewDesc("kubelet_desired_pods", "Desired pods.", []string{"static"}, nil),
		prometheus.NewDesc("kubelet_active_pods", "Desired pods that have not ended, and so count when another one is admitted.", []string{"static"}, nil),
		prometheus.NewDesc("kubelet_managed_ephemeral_containers", "Ephemeral containers of desired pods.", nil, nil),
		prometheus.NewDesc("kubelet_pod_in_progress_resizes", "Pods that are being resized.", nil, nil),
		prometheus.NewDesc("kubelet_pod_pending_resizes", "Pods whose resize is not granted, by reason (deferred, infeasible) and by class of priority.", []string{"reason", "priority_bucket"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *counts) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.running[0]
	ch <- c.running[1]
	for _, d := range c.fromStatus {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *counts) Collect(ch chan<- prometheus.Metric) {
	n := podCounts{pending: map[pendingResize]int{}, containers: map[string]int{"created": 0, "exited": 0, "running": 0, "unknown": 0}}
	c.count(&n)
	set := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	set(c.running[0], n.pods)
	for state, v := range n.containers {
		set(c.running[1], v, state)
	}
	if c.fromStatus == nil {
		return
	}
	for i, static := range []string{"", "true"} { // the kubelet's values
		set(c.fromStatus[0], n.desired[i], static)
		set(c.fromStatus[1], n.active[i], static)
	}
	set(c.fromStatus[2], n.ephemeral)
	set(c.fromStatus[3], n.resizing)
	for kind, v := range n.pending {
		set(c.fromStatus[4], v, kind.reason, kind.priority)
	}
}

type podCounts struct {
	pods       int
	desired    [2]int // not static, static
	active     [2]int // the same
	ephemeral  int
	resizing   int
	pending    map[pendingResize]int
	containers map[string]int
}

// pendingResize has the labels of kubelet_pod_pending_resizes.
type pendingResize struct{ reason, priority string }

// resizes counts a pod that is being resized, or is to be.
func (n *podCounts) resizes(pod *corev1.Pod) {
	for i := range pod.Status.Conditions {
		switch c := &pod.Status.Conditions[i]; {
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.PodResizeInProgress:
			n.resizing++
		case c.Type == corev1.PodResizePending:
			reason := "deferred"
			if c.Reason == corev1.PodReasonInfeasible {
				reason = "infeasible"
			}
			n.pending[pendingResize{reason, priorityClass(podspec.Priority(pod))}]++
		}
	}
}

// priorityClass returns the label of a priority, as a kubelet has it.
func priorityClass(priority int32) string {
	switch {
	case priority >= podspec.SystemCriticalPriority:
		return "system-critical"
	case priority >= 100000:
		return "high"
	case priority > 0:
		return "medium"
	case priority == 0:
		return "normal"
	case priority > -1000:
		return "low"
	default:
		return "very-low"
	}
}

// status counts a pod by its status.
func (n *podCounts) status(pod *corev1.Pod) {
	static := 0
	if podspec.IsStatic(pod) {
		static = 1
	}
	n.desired[static]++
	if !podspec.IsTerminalPhase(pod.Status.Phase) {
		n.active[static]++
	}
	n.ephemeral += len(pod.Spec.EphemeralContainers)
	n.resizes(pod)
	running := false
	for c := range podspec.ContainerStatuses(&pod.Status) {
		switch {
		case c.State.Running != nil:
			running = true
			n.containers["running"]++
		case c.State.Terminated != nil:
			n.containers["exited"]++
		}
	}
	if running {
		n.pods++
	}
}

// observed counts a pod by its state in the runtime.
func (n *podCounts) observed(pod *runtime.Pod) {
	for i := range pod.Containers {
		switch pod.Containers[i].State {
		case runtime.Created:
			n.containers["created"]++
		case runtime.Running:
			n.containers["running"]++
		case runtime.Exited:
			n.containers["exited"]++
		default:
			n.containers["unknown"]++
		}
	}
	if pod.ReadySandbox() != nil {
		n.pods++
	}
}
