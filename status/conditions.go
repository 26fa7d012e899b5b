package status

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Reasons of conditions, as in the Kubernetes API.
const (
	reasonPodCompleted    = "PodCompleted"
	reasonPodFailed       = "PodFailed"
	reasonNoStatuses      = "UnknownContainerStatuses"
	reasonNotReady        = "ContainersNotReady"
	reasonNotInitialized  = "ContainersNotInitialized"
	reasonGatesNotReady   = "ReadinessGatesNotReady"
	reasonSandboxNotReady = "PodSandboxNotReady"
	reasonByKubelet       = corev1.PodReasonTerminationByKubelet
	reasonRestartOfAll    = "RestartAllContainersStarted"
	messageRestartOfAll   = "container exited with restart policy rule"
)

// conditions returns the pod's conditions: those of the node in a fixed order, then
// those of other components, from the pod object.
func (g *generator) conditions(st *corev1.PodStatus) []corev1.PodCondition {
	containersReady := g.containersReady(st)
	out := []corev1.PodCondition{
		g.readyToStart(),
		g.initialized(st),
		g.ready(containersReady),
		containersReady,
		conditionStatus(corev1.PodScheduled, true),
	}
	if c, ok := g.restartOfAll(st); ok {
		out = append(out, c)
	}
	out = append(out, g.resize()...)
	if c, ok := g.disruption(); ok {
		out = append(out, c)
	}
	for i := range out {
		g.date(&out[i])
	}
	for i := range g.pod.Status.Conditions {
		if c := &g.pod.Status.Conditions[i]; !podspec.IsNodeCondition(c.Type) {
			out = append(out, *c)
		}
	}
	return out
}

// date sets the generation and the transition time of a condition.
func (g *generator) date(c *corev1.PodCondition) {
	c.ObservedGeneration = g.pod.Generation
	c.LastTransitionTime = g.now
	for _, list := range [][]corev1.PodCondition{g.previous.Conditions, g.pod.Status.Conditions} {
		if old := condition(list, c.Type); old != nil {
			if c.Type == corev1.PodResizeInProgress && g.isResizePending() {
				c.ObservedGeneration = old.ObservedGeneration // it is not the resize that is pending
			}
			if old.Status == c.Status && !old.LastTransitionTime.IsZero() {
				c.LastTransitionTime = old.LastTransitionTime
			}
			return
		}
	}
}

func condition(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

func conditionStatus(t corev1.PodConditionType, yes bool) corev1.PodCondition {
	c := corev1.PodCondition{Type: t, Status: corev1.ConditionFalse}
	if yes {
		c.Status = corev1.ConditionTrue
	}
	return c
}

func withReason(t corev1.PodConditionType, yes bool, reason, message string) corev1.PodCondition {
	c := conditionStatus(t, yes)
	c.Reason, c.Message = reason, message
	return c
}

// readyToStart is true if containers can run in the pod's sandbox, as runtime.Plan
// decides.
func (g *generator) readyToStart() corev1.PodCondition {
	const t = corev1.PodReadyToStartContainers
	reason := runtime.SandboxReason(g.pod, &g.report.Observed)
	switch {
	case reason != "":
		return withReason(t, false, reasonSandboxNotReady, g.sandboxMessage(reason))
	case g.observed():
		return conditionStatus(t, true)
	}
	if old := condition(g.previous.Conditions, t); old != nil {
		return *old // a listing has neither the network mode nor addresses
	}
	return withReason(t, false, reasonSandboxNotReady, "the pod sandbox has not been inspected yet")
}

// sandboxMessage is the kubelet's message for a sandbox that cannot be used.
func (g *generator) sandboxMessage(reason string) string {
	switch {
	case len(g.report.Observed.Sandboxes) == 0:
		return "no pod sandbox exists"
	case reason == runtime.ReasonMultipleSandboxes:
		return "multiple pod sandboxes are ready and need to be reconciled"
	case reason == runtime.ReasonNetworkModeChanged:
		return "network namespace mode changed and sandbox needs to be recreated"
	case reason == runtime.ReasonNoPodIP:
		return "pod sandbox has no IP address"
	default:
		return "pod sandbox is not ready"
	}
}

func (g *generator) initialized(st *corev1.PodStatus) corev1.PodCondition {
	const t = corev1.PodInitialized
	var incomplete []string
	for i := range g.pod.Spec.InitContainers {
		c := &g.pod.Spec.InitContainers[i]
		done := isReady(st.InitContainerStatuses, c.Name)
		if podspec.IsSidecar(c) {
			done = isStarted(st.InitContainerStatuses, c.Name)
		}
		if !done {
			incomplete = append(incomplete, c.Name)
		}
	}
	switch {
	case st.Phase == corev1.PodSucceeded:
		return withReason(t, true, reasonPodCompleted, "")
	case len(incomplete) == 0, anyRegularStarted(st):
		return conditionStatus(t, true)
	default:
		return withReason(t, false, reasonNotInitialized, fmt.Sprintf("containers with incomplete status: %s", incomplete))
	}
}

func (g *generator) containersReady(st *corev1.PodStatus) corev1.PodCondition {
	const t = corev1.ContainersReady
	var unready []string
	for i := range g.pod.Spec.InitContainers {
		c := &g.pod.Spec.InitContainers[i]
		if podspec.IsSidecar(c) && !isReady(st.InitContainerStatuses, c.Name) {
			unready = append(unready, c.Name)
		}
	}
	for i := range g.pod.Spec.Containers {
		if name := g.pod.Spec.Containers[i].Name; !isReady(st.ContainerStatuses, name) {
			unready = append(unready, name)
		}
	}
	switch {
	case st.Phase == corev1.PodSucceeded:
		return withReason(t, false, reasonPodCompleted, "")
	case st.Phase == corev1.PodFailed:
		return withReason(t, false, reasonPodFailed, "")
	case len(st.ContainerStatuses) == 0:
		return withReason(t, false, reasonNoStatuses, "")
	case len(unready) > 0:
		return withReason(t, false, reasonNotReady, fmt.Sprintf("containers with unready status: %s", unready))
	default:
		return conditionStatus(t, true)
	}
}

// ready adds the readiness gates, whose conditions other components set in the pod.
func (g *generator) ready(containers corev1.PodCondition) corev1.PodCondition {
	const t = corev1.PodReady
	if containers.Status != corev1.ConditionTrue {
		return withReason(t, false, containers.Reason, containers.Message)
	}
	var closed []string
	for _, gate := range g.pod.Spec.ReadinessGates {
		c := condition(g.pod.Status.Conditions, gate.ConditionType)
		switch {
		case c == nil:
			closed = append(closed, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case c.Status != corev1.ConditionTrue:
			closed = append(closed, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, c.Status))
		}
	}
	if len(closed) > 0 {
		return withReason(t, false, reasonGatesNotReady, strings.Join(closed, ", "))
	}
	return conditionStatus(t, true)
}

// disruption reports that the node terminates the pod. The condition is kept once it
// is set, by this agent or by another component, which may change its own.
func (g *generator) disruption() (corev1.PodCondition, bool) {
	const t = corev1.DisruptionTarget
	if e := g.report.Termination; e != nil && e.Evicted && !e.OverLimit {
		return withReason(t, true, reasonByKubelet, e.Message), true
	}
	last, stored := condition(g.previous.Conditions, t), condition(g.pod.Status.Conditions, t)
	if stored != nil && (last == nil || last.Reason != reasonByKubelet) {
		last = stored
	}
	if last == nil {
		return corev1.PodCondition{}, false
	}
	return *last, true
}

// restartOfAll reports whether a rule restarts all containers, for pods with such a
// rule: from the exit of the container that triggers it until the first of the new
// containers is created.
func (g *generator) restartOfAll(st *corev1.PodStatus) (corev1.PodCondition, bool) {
	const t = corev1.AllContainersRestarting
	switch {
	case !g.all.Configured:
		return corev1.PodCondition{}, false
	case st.Phase == corev1.PodSucceeded:
		return withReason(t, false, reasonPodCompleted, ""), true
	case st.Phase == corev1.PodFailed:
		return withReason(t, false, reasonPodFailed, ""), true
	case !g.observed():
		if old := condition(g.previous.Conditions, t); old != nil {
			return *old, true
		}
	case g.all.InProgress && g.report.Termination == nil:
		return withReason(t, true, reasonRestartOfAll, messageRestartOfAll), true
	}
	return conditionStatus(t, false), true
}

// isResizePending reports whether the pod is to get other resources than those that it is being
// resized to.
func (g *generator) isResizePending() bool {
	return podspec.TrueCondition(&g.pod.Status, corev1.PodResizePending) != nil
}

// resize reports resizes that are in progress or pending.
func (g *generator) resize() []corev1.PodCondition {
	if g.final() {
		return nil
	}
	var out []corev1.PodCondition
	if c := podspec.TrueCondition(&g.pod.Status, corev1.PodResizePending); c != nil {
		out = append(out, withReason(corev1.PodResizePending, true, c.Reason, c.Message)) // set by the component that allocates resources
	} else if f := g.report.Failures[""]; f.Reason == corev1.PodReasonDeferred || f.Reason == corev1.PodReasonInfeasible {
		out = append(out, withReason(corev1.PodResizePending, true, f.Reason, f.Message))
	}
	if !g.observed() {
		if old := condition(g.previous.Conditions, corev1.PodResizeInProgress); old != nil {
			out = append(out, *old)
		}
		return out
	}
	for _, slots := range [][]slot{specsOf(g.pod, true), specsOf(g.pod, false)} {
		for _, s := range slots {
			newest, _ := attempts(&g.report.Observed, s.c.Name)
			if newest == nil || newest.State != runtime.Running || !runtime.NeedsResize(g.pod, s.c, s.kind, newest.Resources) {
				continue
			}
			c := conditionStatus(corev1.PodResizeInProgress, true)
			if f := g.report.Failures[s.c.Name]; f.Err != nil {
				c.Reason, c.Message = corev1.PodReasonError, f.Message
			}
			return append(out, c)
		}
	}
	if f := g.report.Failures[""]; f.Reason == corev1.PodReasonError { // of the cgroup of the pod
		out = append(out, withReason(corev1.PodResizeInProgress, true, f.Reason, f.Message))
	}
	return out
}
