package prom

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// RegisterPods registers the numbers of desired pods, running pods and containers,
// counted from pod statuses. pods is called on each scrape, from any goroutine, and
// must not block. Agent.Pods can be used.
func RegisterPods(reg prometheus.Registerer, pods func() []*corev1.Pod) error {
	if pods == nil {
		return errors.New("prom: nil pods")
	}
	return register(reg, &counts{running: newRunning(), desired: newDesired(), count: func(n *podCounts) {
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
	running [2]*prometheus.Desc // pods, containers
	desired *prometheus.Desc    // may be nil
	count   func(*podCounts)
}

func newRunning() [2]*prometheus.Desc {
	return [2]*prometheus.Desc{
		prometheus.NewDesc("kubelet_running_pods", "Running pods.", nil, nil),
		prometheus.NewDesc("kubelet_running_containers", "Containers, by state.", []string{"container_state"}, nil),
	}
}

func newDesired() *prometheus.Desc {
	return prometheus.NewDesc("kubelet_desired_pods", "Desired pods.", []string{"static"}, nil)
}

// Describe implements prometheus.Collector.
func (c *counts) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.running[0]
	ch <- c.running[1]
	if c.desired != nil {
		ch <- c.desired
	}
}

// Collect implements prometheus.Collector.
func (c *counts) Collect(ch chan<- prometheus.Metric) {
	n := podCounts{containers: map[string]int{"created": 0, "exited": 0, "running": 0, "unknown": 0}}
	c.count(&n)
	set := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	set(c.running[0], n.pods)
	for state, v := range n.containers {
		set(c.running[1], v, state)
	}
	if c.desired != nil {
		set(c.desired, n.desired[0], "") // the kubelet's value
		set(c.desired, n.desired[1], "true")
	}
}

type podCounts struct {
	pods       int
	desired    [2]int // not static, static
	containers map[string]int
}

// status counts a pod by its status.
func (n *podCounts) status(pod *corev1.Pod) {
	static := 0
	if podspec.IsStatic(pod) {
		static = 1
	}
	n.desired[static]++
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
