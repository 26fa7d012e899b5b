package syncloop

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// A source that is not static delivers pods that are invalid: see podsource.InvalidReason.
// They are rejected. One that runs since before this process started was valid for the
// process that started it. It is left alone, without a worker, for as long as it runs. Its
// resources count, and it ends like any other pod when it is deleted.

// reasonInvalid is the reason of pods that are rejected because they are invalid.
const reasonInvalid = "InvalidPod"

func isInvalid(pod *corev1.Pod) bool { return podsource.InvalidReason(pod) != "" }

func rejectInvalid(pod *corev1.Pod) podspec.AdmitResult {
	return podspec.Rejected(reasonInvalid, "Pod is invalid: "+podsource.InvalidReason(pod))
}

// leaveAlone keeps an invalid pod that runs.
func (p *PodManager) leaveAlone(pod *corev1.Pod, now time.Time) {
	p.setLeftAlone(pod)
	message := podsource.InvalidReason(pod)
	p.cfg.Logger.Warn("invalid pod left alone because it runs", podAttrs(pod, sourceAttr(pod), slog.String("message", message))...)
	if p.cfg.Recorder != nil {
		p.cfg.Recorder.Record(podspec.NewEvent(pod, corev1.EventTypeWarning, reasonInvalid,
			"Pod is invalid for this node and runs without being synced: "+message, now))
	}
}

// changeLeftAlone handles a newer version of a pod that is left alone.
func (p *PodManager) changeLeftAlone(pod *corev1.Pod, now time.Time) {
	if isInvalid(pod) && !isFinished(pod) {
		p.setLeftAlone(pod)
		return
	}
	p.startLeftAlone(pod, now)
}

// rejectStopped rejects a pod that was left alone, if it does not run any more.
func (p *PodManager) rejectStopped(uid types.UID) {
	d := p.get(uid)
	if d == nil || !d.leftAlone || p.cfg.Inspector.IsRunning(uid) {
		return
	}
	p.startLeftAlone(d.pod, time.Now())
}

func (p *PodManager) setLeftAlone(pod *corev1.Pod) {
	p.set(pod.UID, &desiredPod{pod: pod, leftAlone: true})
	p.activePods.put(pod)
}

// startLeftAlone starts or rejects a pod that is not left alone any more.
func (p *PodManager) startLeftAlone(pod *corev1.Pod, now time.Time) {
	p.activePods.drop(pod.UID)
	p.set(pod.UID, &desiredPod{pod: pod})
	p.start(pod, now)
}
