package syncloop

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// A critical pod that lacks only resources is admitted at the cost of others. These are
// evicted, and the pod waits for their end without a worker: it is Pending with the
// reason Blocked. Its resources count from the beginning, so that no other pod gets what
// becomes free. What a process that ends meanwhile leaves is an eviction to be resumed and
// a pod that is new to the next process.

// messagePreempted is the message of preempted pods; the kubelet uses the same.
const messagePreempted = "Preempted in order to admit critical pod"

// Preemptor chooses the pods that give way to a critical one. See admission.Admitter.
type Preemptor interface {
	// Victims returns the pods, of those of others for which mayPreempt returns true, without
	// which the pod has the resources that it requests: none if it has them already. ok is
	// false if there are no such pods. It does no I/O and does not block.
	Victims(pod *corev1.Pod, others []*corev1.Pod, mayPreempt func(*corev1.Pod) bool) (victims []*corev1.Pod, ok bool)
}

// Reserver is implemented by an Admitter that sets resources aside for the pods that it admits, and frees
// what it has set aside for pods that are not among the others of a later call. See topology.Manager.
type Reserver interface {
	// AdmitBeside is Admit with pods that are not among others and have not ended: the pods that are preempted
	// only if this one is admitted, and those that wait for what they were promised. What is set aside for
	// them stays so, and is not free.
	AdmitBeside(pod *corev1.Pod, others, kept []*corev1.Pod) podspec.AdmitResult
}

// preemption is what a pod waits for.
type preemption struct {
	preempt     []*corev1.Pod             // chosen, and to be evicted
	terminating []*corev1.Pod             // terminating already
	resource    corev1.ResourceName       // the first that is missing
	waitsFor    map[types.UID]*corev1.Pod // set when the pod begins to wait
}

// decide admits a pod, or returns what makes room for it if it is critical.
func (p *PodManager) decide(pod *corev1.Pod) (podspec.AdmitResult, *preemption) {
	v := p.admit(pod)
	if len(v.Insufficient) == 0 || p.cfg.Preemptor == nil || !podspec.IsCritical(pod) {
		return v, nil
	}
	preemption := &preemption{resource: v.Insufficient[0].Name}
	var others []*corev1.Pod
	for _, other := range p.activePods.pods {
		if p.isTerminating(other.UID) {
			preemption.terminating = append(preemption.terminating, other)
		} else {
			others = append(others, other)
		}
	}
	var ok bool
	if preemption.preempt, ok = p.victims(pod, others); !ok {
		return v, nil
	}
	others = slices.DeleteFunc(others, func(other *corev1.Pod) bool { return slices.Contains(preemption.preempt, other) })
	if v := p.runAdmitters(pod, others, preemption.preempt...); !v.Admitted {
		return v, nil // resources are not all that it lacks
	}
	return v, preemption
}

// isTerminating reports whether a pod ends, so that its resources become free.
func (p *PodManager) isTerminating(uid types.UID) bool {
	st, _ := p.cfg.Workers.State(uid)
	return st.Phase != podworkers.Syncing
}

// mayPreempt reports whether this PodManager can end a pod that does not terminate yet: it
// is desired and was started.
func (p *PodManager) mayPreempt(pod *corev1.Pod) bool {
	_, started := p.cfg.Workers.State(pod.UID)
	return started && p.get(pod.UID) != nil
}

// preempt evicts pods in favour of another, and lets that wait for their end.
func (p *PodManager) preempt(pod *corev1.Pod, by *preemption, now time.Time) {
	for _, victim := range by.preempt {
		p.cfg.Logger.Warn("pod preempted", logattr.Pod(victim), logattr.PodUID(victim.UID),
			slog.String("preemptor", pod.Namespace+"/"+pod.Name), slog.String("resource", string(by.resource)))
		if p.cfg.Recorder != nil {
			p.cfg.Recorder.Record(podspec.NewEvent(victim, corev1.EventTypeWarning, podspec.ReasonPreempted, messagePreempted, now))
		}
		if h := p.cfg.Hooks.Preempted; h != nil {
			h(victim, pod, by.resource)
		}
		p.cfg.Workers.Update(podworkers.Update{
			Pod: p.get(victim.UID).pod, Kill: &podworkers.KillOptions{Termination: preempted()}, StartTime: now,
		})
	}
	by.waitsFor = map[types.UID]*corev1.Pod{}
	for _, other := range slices.Concat(by.preempt, by.terminating) {
		by.waitsFor[other.UID] = other
	}
	if st, _ := p.cfg.Statuses.Get(pod.UID); podspec.IsTerminalPhase(st.Phase) { // rejected before
		p.cfg.Statuses.Forget(pod.UID)
	}
	p.set(pod.UID, &desiredPod{pod: pod, preemption: by})
	p.activePods.put(pod)
	p.preemptors = append(p.preemptors, pod.UID)
	message := by.message()
	p.logPod("pod waiting for resources", pod, slog.String("message", message))
	p.cfg.Statuses.Observe(pod, runtime.Report{Blocked: &runtime.Failure{Message: message}})
}

// preempted is how a pod ends that gives way to another one.
func preempted() runtime.Termination {
	return runtime.Termination{Reason: podspec.ReasonPreempted, Message: messagePreempted, Evicted: true}
}

func (by *preemption) message() string {
	var names []string
	for _, pod := range by.waitsFor {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	slices.Sort(names)
	return "Waiting until other pods have ended: " + strings.Join(names, ", ")
}

// startPreemptors starts the waiting pods that have what they wait for, in order of their
// arrival.
func (p *PodManager) startPreemptors(now time.Time) {
	for _, uid := range slices.Clone(p.preemptors) {
		d := p.get(uid)
		if d.preemption.isOver(p.cfg.Workers) {
			p.stopWaiting(uid)
			p.set(uid, &desiredPod{pod: d.pod})
			p.startPreemptor(d.pod, now)
		}
	}
}

func (by *preemption) isOver(workers Workers) bool {
	for uid := range by.waitsFor {
		if st, ok := workers.State(uid); ok && !st.Idle {
			return false
		}
	}
	return true
}

// startPreemptor admits a pod beside all but those that wait: what they have been
// promised is not free yet, and does not contain what this pod has been promised.
func (p *PodManager) startPreemptor(pod *corev1.Pod, now time.Time) {
	p.activePods.drop(pod.UID)
	p.activePods.keep(p.isActive)
	var others, waiting []*corev1.Pod
	for _, other := range p.activePods.pods {
		if slices.Contains(p.preemptors, other.UID) {
			waiting = append(waiting, other)
		} else {
			others = append(others, other)
		}
	}
	if v := p.runAdmitters(pod, others, waiting...); !v.Admitted {
		p.start(pod, now) // something else has changed
		return
	}
	p.create(podworkers.Update{Type: podworkers.PodCreate, Pod: pod, StartTime: now})
}

// endWaitFor has no pod wait for one that starts: the instance that was waited for has ended,
// and the new one was admitted beside those that wait.
func (p *PodManager) endWaitFor(uid types.UID) {
	for _, preemptor := range p.preemptors {
		delete(p.get(preemptor).preemption.waitsFor, uid)
	}
}

// stopWaiting forgets what a pod waits for.
func (p *PodManager) stopWaiting(uid types.UID) {
	p.preemptors = slices.DeleteFunc(p.preemptors, func(other types.UID) bool { return other == uid })
}

// changePreemptor handles a newer version of a pod that waits. One that is deleted waits
// no longer: its worker does what follows.
func (p *PodManager) changePreemptor(pod *corev1.Pod, d *desiredPod, now time.Time) {
	if !isFinished(pod) {
		p.set(pod.UID, &desiredPod{pod: pod, preemption: d.preemption})
		p.activePods.put(pod)
		return
	}
	p.stopWaiting(pod.UID)
	p.activePods.drop(pod.UID)
	p.set(pod.UID, &desiredPod{pod: pod})
	p.start(pod, now)
}
