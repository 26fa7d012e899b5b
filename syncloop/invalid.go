package syncloop

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// A source that is not static delivers pods that are invalid: see podsource.InvalidReason.
// They are rejected. One that runs since before this process started was valid for the
// process that started it. It is left alone, without a worker, for as long as it runs. Its
// resources count, its status follows its containers, and it ends like any other pod when it is
// deleted.

// reasonInvalid is the reason of pods that are rejected because they are invalid.
const reasonInvalid = "InvalidPod"

func isInvalid(pod *corev1.Pod) bool { return podsource.InvalidReason(pod) != "" }

func rejectInvalid(pod *corev1.Pod) podspec.AdmitResult {
	return podspec.Rejected(reasonInvalid, "Pod is invalid: "+podsource.InvalidReason(pod))
}

// leaveAlone keeps an invalid pod that runs.
func (p *PodManager) leaveAlone(pod *corev1.Pod, now time.Time) {
	p.setLeftAlone(pod, p.lastReported(pod.UID))
	message := podsource.InvalidReason(pod)
	p.cfg.Logger.Warn("invalid pod left alone because it runs", podAttrs(pod, sourceAttr(pod), slog.String("message", message))...)
	if p.cfg.Recorder != nil {
		p.cfg.Recorder.Record(podspec.NewEvent(pod, corev1.EventTypeWarning, reasonInvalid,
			"Pod is invalid for this node and runs without being synced: "+message, now))
	}
	p.observeLeftAlone(pod.UID)
}

// lastReported returns the pod as it was reported last, or nil.
func (p *PodManager) lastReported(uid types.UID) *corev1.Pod {
	if p.reported != nil {
		return p.reported()[uid]
	}
	return p.reportedByUID()[uid]
}

// reportedByUID returns all pods as they were reported last.
func (p *PodManager) reportedByUID() map[types.UID]*corev1.Pod {
	if p.cfg.Reported == nil {
		return nil
	}
	pods := p.cfg.Reported()
	byUID := make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		byUID[pod.UID] = pod
	}
	return byUID
}

// observeLeftAlone reports the state of a pod that is left alone. Of the spec of an invalid pod too
// little is known, so it is that of the last report. A pod that has ended, although its sandbox
// may be ready, is stopped.
func (p *PodManager) observeLeftAlone(uid types.UID) {
	d := p.get(uid)
	if d == nil || d.reported == nil || p.cfg.Observed == nil {
		return
	}
	observed, ok := p.cfg.Observed(uid)
	if !ok || observed.ObservedAt.IsZero() {
		return
	}
	pod := *d.reported
	pod.Status = d.pod.Status
	if st := p.cfg.Statuses.Observe(&pod, runtime.Report{Observed: observed}); podspec.IsTerminalPhase(st.Phase) {
		p.startLeftAlone(d.pod, time.Now())
	}
}

// changeLeftAlone handles a newer version of a pod that is left alone.
func (p *PodManager) changeLeftAlone(pod *corev1.Pod, now time.Time) {
	if isInvalid(pod) && !isFinished(pod) {
		p.setLeftAlone(pod, p.get(pod.UID).reported)
		p.observeLeftAlone(pod.UID)
		return
	}
	p.startLeftAlone(pod, now)
}

// followLeftAlone handles an event of a pod that is left alone: it is rejected if it does not run any
// more.
func (p *PodManager) followLeftAlone(uid types.UID) {
	d := p.get(uid)
	switch {
	case d == nil || !d.leftAlone:
	case p.cfg.Inspector.IsRunning(uid):
		p.observeLeftAlone(uid)
	default:
		p.startLeftAlone(d.pod, time.Now())
	}
}

func (p *PodManager) setLeftAlone(pod, reported *corev1.Pod) {
	p.set(pod.UID, &desiredPod{pod: pod, leftAlone: true, reported: reported})
	p.activePods.put(pod)
}

// startLeftAlone starts or rejects a pod that is not left alone any more.
func (p *PodManager) startLeftAlone(pod *corev1.Pod, now time.Time) {
	p.activePods.drop(pod.UID)
	p.set(pod.UID, &desiredPod{pod: pod})
	p.start(pod, now)
}
