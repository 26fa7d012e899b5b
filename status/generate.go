package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// NodeInfo is what a status tells about the node besides the pod.
type NodeInfo struct {
	// HostIPs are the node's addresses, primary first, one for each family.
	HostIPs []string
	// RuntimeName is the runtime's name. Container ids are told as
	// "<runtime>://<id>"; bare when it is empty.
	RuntimeName string
	// HasRecursiveReadOnlyMounts says whether the runtime can make mounts read-only
	// with all that is mounted below them.
	HasRecursiveReadOnlyMounts bool
}

// Generate returns the status to tell about pod. It is pure: now is used for
// the start time and for the transition times of conditions that change, and
// nothing of the arguments is changed or shared but read-only values.
//
// former is the status told before, or the zero value. It is what makes the
// answer steady: terminal phases, restart counts, exit codes, start time,
// readiness that no probe of this process has judged yet, and addresses are
// carried over from it.
//
// A condition PodResizePending in the pod object is told on with its reason: whoever
// hands the pod over, with the resources that it has, holds a change of them back.
//
// A report whose Seen.ObservedAt is zero says nothing about containers that it
// does not list: they stay as they were told. In an inspection, a container
// that is missing is gone.
func Generate(pod *corev1.Pod, r runtime.Report, former corev1.PodStatus, env NodeInfo, now time.Time) corev1.PodStatus {
	g := generator{pod: pod, report: &r, previous: &former, env: &env, now: stamp(now)}
	g.all = runtime.RestartAllStatusOf(pod, &r.Observed)
	g.initDone = g.observed() && runtime.Initialized(pod, &r.Observed)
	st := corev1.PodStatus{
		ObservedGeneration: pod.Generation,
		QOSClass:           qosClass(pod, &former),
		StartTime:          g.startTime(),
		NominatedNodeName:  pod.Status.NominatedNodeName,

		ResourceClaimStatuses:       pod.Status.ResourceClaimStatuses,
		ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
	}
	g.allContainers(&st)
	g.addresses(&st)
	g.phase(&st)
	if terminal(st.Phase) {
		// That nothing starts again follows from the containers themselves:
		// what they wait for does not come.
		g.terminal = true
		g.allContainers(&st)
	}
	g.podResources(&st)
	st.Conditions = g.conditions(&st)
	return st
}

// generator carries the arguments of Generate. All of them are read-only.
type generator struct {
	pod      *corev1.Pod
	report   *runtime.Report
	previous *corev1.PodStatus
	env      *NodeInfo
	now      metav1.Time
	all      runtime.RestartAllStatus
	terminal bool // the phase came out as terminal

	// initDone says that the pod is past its init containers, whatever is known
	// of them.
	initDone bool
}

func (g *generator) allContainers(st *corev1.PodStatus) {
	if terminal(g.previous.Phase) && noContainers(g.previous) {
		return // it was refused: none of them will ever be
	}
	st.InitContainerStatuses = g.containers(specsOf(g.pod, true))
	st.ContainerStatuses = byName(g.containers(specsOf(g.pod, false)))
	st.EphemeralContainerStatuses = byName(g.containers(ephemeralSpecs(g.pod)))
}

// observed reports whether the view comes from an inspection, so that what is
// missing from it is gone.
func (g *generator) observed() bool { return !g.report.Observed.ObservedAt.IsZero() }

// restartsWithAll reports whether a container that ended runs again because all do. A
// listing cannot tell, and leaves it open.
func (g *generator) restartsWithAll(name string) bool {
	return g.all.IsPending(name) || g.all.Configured && !g.observed()
}

// final reports whether no container of the pod runs or will ever run again.
func (g *generator) final() bool {
	if e := g.report.Termination; e != nil && e.Drained { // what ends is the node, and not the pod
		return g.terminal
	}
	return g.terminal || g.report.Finished ||
		g.report.Termination != nil && g.observed() && !g.report.Observed.CouldHaveRunningContainers()
}

func (g *generator) startTime() *metav1.Time {
	for _, t := range []*metav1.Time{g.previous.StartTime, g.pod.Status.StartTime} {
		if t != nil {
			return t
		}
	}
	now := g.now
	return &now
}

// addresses fills the host's and the pod's addresses. A pod whose sandbox is
// gone keeps those it had: they are part of what happened to it.
func (g *generator) addresses(st *corev1.PodStatus) {
	for _, ip := range g.env.HostIPs {
		st.HostIPs = append(st.HostIPs, corev1.HostIP{IP: ip})
	}
	if len(st.HostIPs) == 0 {
		st.HostIPs = g.previous.HostIPs
	}
	if len(st.HostIPs) > 0 {
		st.HostIP = st.HostIPs[0].IP
	}
	sandbox := g.report.Observed.ReadySandbox()
	switch {
	case sandbox == nil:
		st.PodIPs = g.previous.PodIPs
	case sandbox.HostNetwork || g.pod.Spec.HostNetwork:
		for _, ip := range st.HostIPs {
			st.PodIPs = append(st.PodIPs, corev1.PodIP(ip))
		}
	case g.observed():
		for _, ip := range sandbox.IPs {
			st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip})
		}
	default:
		st.PodIPs = g.previous.PodIPs
	}
	if len(st.PodIPs) > 0 {
		st.PodIP = st.PodIPs[0].IP
	}
}

// qosClass never changes in a pod's life.
func qosClass(pod *corev1.Pod, former *corev1.PodStatus) corev1.PodQOSClass {
	for _, q := range []corev1.PodQOSClass{former.QOSClass, pod.Status.QOSClass} {
		if q != "" {
			return q
		}
	}
	return podspec.QOS(pod)
}

// stamp gives t the precision that statuses have on the wire, so that one read
// back equals the one that was written.
func stamp(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t.UTC().Truncate(time.Second))
}

func terminal(p corev1.PodPhase) bool { return p == corev1.PodFailed || p == corev1.PodSucceeded }
