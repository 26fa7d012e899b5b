package prom

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// RegisterPods registers how many pods are wanted and how many run, as their
// statuses tell. pods is called for each scrape, from any goroutine, and answers
// from memory.
func RegisterPods(reg prometheus.Registerer, pods func() []*corev1.Pod) error {
	if pods == nil {
		return errors.New("prom: nil pods")
	}
	return register(reg, &counts{running: newRunning(), desired: newDesired(), count: func(n *tally) {
		for _, pod := range pods() {
			n.status(pod)
		}
	}})
}

// RegisterRuntimePods registers how many pods run, for those who have no statuses:
// pods is what was last seen of the runtime, such as podcache's Pods. It cannot
// stand beside RegisterPods on one Registerer.
func RegisterRuntimePods(reg prometheus.Registerer, pods func() []runtime.Pod) error {
	if pods == nil {
		return errors.New("prom: nil pods")
	}
	return register(reg, &counts{running: newRunning(), count: func(n *tally) {
		for _, pod := range pods() {
			n.seen(&pod)
		}
	}})
}

func register(reg prometheus.Registerer, c *counts) error {
	if reg == nil {
		return errors.New("prom: nil Registerer")
	}
	if err := reg.Register(c); err != nil {
		return fmt.Errorf("prom: register counts of pods: %w", err)
	}
	return nil
}

// counts counts when it is asked.
type counts struct {
	running [2]*prometheus.Desc // pods, containers
	desired *prometheus.Desc    // may be nil
	count   func(*tally)
}

func newRunning() [2]*prometheus.Desc {
	return [2]*prometheus.Desc{
		prometheus.NewDesc("kubelet_running_pods", "Pods that run.", nil, nil),
		prometheus.NewDesc("kubelet_running_containers", "Containers, by state.", []string{"container_state"}, nil),
	}
}

func newDesired() *prometheus.Desc {
	return prometheus.NewDesc("kubelet_desired_pods", "Pods that should run here.", []string{"static"}, nil)
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
	n := tally{containers: map[string]int{"created": 0, "exited": 0, "running": 0, "unknown": 0}}
	c.count(&n)
	set := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	set(c.running[0], n.pods)
	for state, v := range n.containers {
		set(c.running[1], v, state)
	}
	if c.desired != nil {
		for i, v := range n.desired {
			set(c.desired, v, strconv.FormatBool(i == 1))
		}
	}
}

type tally struct {
	pods       int
	desired    [2]int // others, static ones
	containers map[string]int
}

// status counts a pod as its status tells.
func (n *tally) status(pod *corev1.Pod) {
	static := 0
	if podspec.IsStatic(pod) {
		static = 1
	}
	n.desired[static]++
	running := false
	for _, list := range [][]corev1.ContainerStatus{
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			switch s := &list[i].State; {
			case s.Running != nil:
				running = true
				n.containers["running"]++
			case s.Terminated != nil:
				n.containers["exited"]++
			}
		}
	}
	if running {
		n.pods++
	}
}

// seen counts a pod as the runtime has it.
func (n *tally) seen(pod *runtime.Pod) {
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
