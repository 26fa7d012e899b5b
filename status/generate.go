package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// NodeInfo is the node's part of a status.
type NodeInfo struct {
	// HostIPs are the node's addresses, primary first, one per family.
	HostIPs []string
	// RuntimeName is the runtime's name. Container ids are reported as
	// "<runtime>://<id>", or without the prefix if it is empty.
	RuntimeName string
	// Handlers say whether the runtime can make mounts read-only together with all mounts below
	// them, for the pods of one handler each. They are read-only.
	Handlers []runtime.Handler
	// RunsPods reports whether the runtime is a runtime.PodSyncer: the status of a pod is
	// that of its object in the runtime, and nothing is derived from containers.
	RunsPods bool
}

// Generate returns the status of a pod. It is pure: now is used for the start time
// and for the transition times of conditions that change. The arguments are not
// changed; the result shares only read-only values with them.
//
// previous is the last reported status, or the zero value. Terminal phases, restart
// counts, exit codes, start time, addresses, and readiness without a probe result
// in this process are carried over from it.
//
// A condition PodResizePending in the pod object is kept with its reason: the caller
// passes the allocated resources and defers a change of them.
//
// A report with a zero Observed.ObservedAt comes from a listing. Containers that are
// not in it keep their previous status. In a report of an inspection, a container
// that is missing was removed.
func Generate(pod *corev1.Pod, r runtime.Report, previous corev1.PodStatus, env NodeInfo, now time.Time) corev1.PodStatus {
	g := generator{pod: pod, report: &r, previous: &previous, env: &env, now: stamp(now)}
	if env.RunsPods {
		return clipped(g.reportedStatus())
	}
	g.all = runtime.RestartAllStatusOf(pod, &r.Observed)
	g.initDone = g.observed() && runtime.Initialized(pod, &r.Observed)
	st := corev1.PodStatus{
		ObservedGeneration: pod.Generation,
		QOSClass:           qosClass(pod, &previous),
		StartTime:          g.startTime(),
		NominatedNodeName:  pod.Status.NominatedNodeName,

		ResourceClaimStatuses:       pod.Status.ResourceClaimStatuses,
		ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
	}
	g.allContainers(&st)
	g.addresses(&st)
	g.phase(&st)
	if podspec.IsTerminalPhase(st.Phase) {
		// No container starts again, so a waiting one is reported by its last
		// termination.
		g.terminal = true
		g.allContainers(&st)
	}
	g.podResources(&st)
	g.keepEnds(specsOf(g.pod, false), st.ContainerStatuses)
	g.keepEnds(ephemeralSpecs(g.pod), st.EphemeralContainerStatuses)
	st.Conditions = g.conditions(&st)
	g.keepEnds(specsOf(g.pod, true), st.InitContainerStatuses)
	return clipped(st)
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

	// initDone means that the init containers have completed, even if their
	// statuses are unknown.
	initDone bool
}

func (g *generator) allContainers(st *corev1.PodStatus) {
	if podspec.IsTerminalPhase(g.previous.Phase) && noContainers(g.previous) {
		return // it was rejected: none of its containers will ever exist
	}
	st.InitContainerStatuses = g.containers(specsOf(g.pod, true))
	st.ContainerStatuses = byName(g.containers(specsOf(g.pod, false)))
	st.EphemeralContainerStatuses = byName(g.containers(ephemeralSpecs(g.pod)))
}

// observed reports whether the state comes from an inspection, so that a container
// missing from it was removed.
func (g *generator) observed() bool { return !g.report.Observed.ObservedAt.IsZero() }

// restartsWithAll reports whether an exited container runs again because all do. A
// listing leaves this open: then it is true if a rule could request it.
func (g *generator) restartsWithAll(name string) bool {
	return g.all.IsPending(name) || g.all.Configured && !g.observed()
}

// final reports whether no container of the pod runs or will ever run again.
func (g *generator) final() bool {
	if e := g.report.Termination; e != nil && e.Drained { // the node shuts down, and the pod is still desired
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

// addresses sets the addresses of the host and the pod. A pod on the host network has those of the
// host from the beginning. Any other one, and one that has ended, keeps the ones it had while it has no ready sandbox.
func (g *generator) addresses(st *corev1.PodStatus) {
	g.hostAddresses(st)
	sandbox := g.report.Observed.ReadySandbox()
	onHost := g.pod.Spec.HostNetwork && !podspec.IsTerminalPhase(g.previous.Phase)
	switch {
	case onHost, sandbox != nil && (sandbox.HostNetwork || g.pod.Spec.HostNetwork):
		for _, ip := range st.HostIPs {
			st.PodIPs = append(st.PodIPs, corev1.PodIP(ip))
		}
	case sandbox == nil:
		st.PodIPs = g.previous.PodIPs
	case g.observed():
		for _, ip := range runtime.PodIPs(sandbox.IPs, g.env.HostIPs) {
			st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip})
		}
	default:
		st.PodIPs = g.previous.PodIPs
	}
	if len(st.PodIPs) > 0 {
		st.PodIP = st.PodIPs[0].IP
	}
}

func (g *generator) hostAddresses(st *corev1.PodStatus) {
	for _, ip := range g.env.HostIPs {
		st.HostIPs = append(st.HostIPs, corev1.HostIP{IP: ip})
	}
	if len(st.HostIPs) == 0 {
		st.HostIPs = g.previous.HostIPs
	}
	if len(st.HostIPs) > 0 {
		st.HostIP = st.HostIPs[0].IP
	}
}

// qosClass is constant during the lifetime of a pod.
func qosClass(pod *corev1.Pod, previous *corev1.PodStatus) corev1.PodQOSClass {
	for _, q := range []corev1.PodQOSClass{previous.QOSClass, pod.Status.QOSClass} {
		if q != "" {
			return q
		}
	}
	return podspec.QOS(pod)
}

// stamp truncates t to the precision of the serialized status, so that a status
// that was stored and loaded equals the original.
func stamp(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t.UTC().Truncate(time.Second))
}
