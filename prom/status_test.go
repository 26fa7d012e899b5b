package prom_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

// ended returns the status of a pod with one container, which has ended.
func ended(name string, restarts, code int32, reason string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: name, RestartCount: restarts,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}},
	}}}
}

// Each end of a container counts once, however often it is reported.
func TestStatus_TerminatedContainers(t *testing.T) {
	m, reg := newMetrics(t)
	p, changed := &corev1.Pod{}, m.Status().Changed
	first, second := ended("c", 0, 139, "Error"), ended("c", 1, 139, "Error")
	running := corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "c", RestartCount: 1, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: first.ContainerStatuses[0].State,
	}}}
	changed(p, corev1.PodStatus{}, first)
	assert.Empty(t, series(t, reg, "kubelet_terminated_containers_total"), "a previous process may have seen it")
	changed(p, phase(corev1.PodRunning), first)
	changed(p, first, first)
	changed(p, first, running)
	changed(p, running, second)
	changed(p, second, ended("c", 2, 0, "Completed")) // it ran for so short that it was not seen to
	reported := &corev1.Pod{Status: first}
	changed(reported, corev1.PodStatus{}, first)
	changed(reported, corev1.PodStatus{}, ended("c", 1, 143, "Error")) // while no agent ran
	others := second
	others.InitContainerStatuses = ended("i", 0, 0, "Completed").ContainerStatuses
	others.EphemeralContainerStatuses = ended("e", 0, 137, "OOMKilled").ContainerStatuses
	changed(p, second, others)
	assert.Equal(t, []string{
		`kubelet_terminated_containers_total{container_type="container",exit_code="0",reason="Completed"} 1`,
		`kubelet_terminated_containers_total{container_type="container",exit_code="139",reason="Error"} 2`,
		`kubelet_terminated_containers_total{container_type="container",exit_code="143",reason="Error"} 1`,
		`kubelet_terminated_containers_total{container_type="ephemeral_container",exit_code="137",reason="OOMKilled"} 1`,
		`kubelet_terminated_containers_total{container_type="init_container",exit_code="0",reason="Completed"} 1`,
	}, series(t, reg, "kubelet_terminated_containers_total"))
}

// AG-5: neither an exit code nor a reason makes series without end: what is no process may end with any.
func TestStatus_BoundsTerminatedContainers(t *testing.T) {
	m, reg := newMetrics(t)
	for i := range int32(1000) {
		m.Status().Changed(&corev1.Pod{}, phase(corev1.PodRunning), ended("c", i, 256+i, "Error"))
		m.Status().Changed(&corev1.Pod{}, phase(corev1.PodRunning), ended("c", i, -1, "Error"))
		m.Status().Changed(&corev1.Pod{}, phase(corev1.PodRunning), ended("c", i, 255, fmt.Sprint("Reason", i)))
	}
	all := series(t, reg, "kubelet_terminated_containers_total")
	assert.Contains(t, all, `kubelet_terminated_containers_total{container_type="container",exit_code="other",reason="Error"} 2000`)
	assert.Less(t, len(all), 110)
}
