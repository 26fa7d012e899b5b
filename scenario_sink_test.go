package agent_test

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// recordingSink takes statuses and holds them against what was told before, by this
// process of the agent and by former ones.
type recordingSink struct {
	w   *harness
	tap *criInterceptor

	mu    sync.Mutex
	heard map[types.UID]bool // a new process tells everything once
}

// SetStatus implements status.Sink.
func (s *recordingSink) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	if s.tap.isDead() {
		return nil // so that the remains of the agent do not try again
	}
	w := s.w
	w.mu.Lock()
	err := w.sinkErr
	former, told := w.last[pod.UID]
	if err == nil {
		w.last[pod.UID] = st
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	label := w.trace.label(pod.UID, pod.Name)
	if told && !former.StartTime.Equal(st.StartTime) && former.StartTime != nil {
		told = false // its UID came back
		w.trace.add(label, lineStatus, "", "= anew")
	}
	if told {
		s.mu.Lock()
		again := s.heard[pod.UID] && equality.Semantic.DeepEqual(former, st)
		s.heard[pod.UID] = true
		s.mu.Unlock()
		if again {
			w.t.Errorf("%s: the same status is told twice of %s", w.trace.String(), label)
		}
		faults := goesBack(former, st)
		if !w.chance.lies() {
			faults = append(faults, contradicts(former, st)...)
		}
		for _, fault := range faults {
			w.t.Errorf("%s: status told of %s: %s", w.trace.String(), label, fault)
		}
	}
	w.trace.add(label, lineStatus, "", statusText(pod, st))
	return nil
}

// DeleteStatus implements status.Deleter.
func (s *recordingSink) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	if s.tap.isDead() {
		return nil // so that the remains of the agent do not try again
	}
	w := s.w
	label := w.trace.label(pod.UID, pod.Name)
	w.mu.Lock()
	err := w.sinkErr
	delete(w.last, pod.UID)
	w.mu.Unlock()
	if err != nil {
		return err
	}
	for _, c := range w.running() {
		if c.GetLabels()["io.kubernetes.pod.uid"] == string(pod.UID) && !w.chance.lies() {
			w.t.Errorf("%s is told as deleted while %s runs", label, c.GetMetadata().GetName())
		}
	}
	w.trace.add(label, lineStatus, "", "= gone")
	return nil
}

// goesBack finds what can never follow in the statuses of one pod, whatever the
// runtime tells. // ST-5
func goesBack(former, now corev1.PodStatus) (faults []string) {
	if isOver(former.Phase) && now.Phase != former.Phase {
		faults = append(faults, fmt.Sprintf("%s after %s", now.Phase, former.Phase))
	}
	for _, c := range slices.Concat(now.InitContainerStatuses, now.ContainerStatuses) {
		if c.Ready && c.State.Running == nil && (c.State.Terminated == nil || c.State.Terminated.ExitCode != 0) {
			faults = append(faults, fmt.Sprintf("%s is ready and does not run", c.Name))
		}
		if was := statusOf(former, c.Name); was != nil && c.RestartCount < was.RestartCount {
			faults = append(faults, fmt.Sprintf("restarts of %s go back from %d to %d", c.Name, was.RestartCount, c.RestartCount))
		}
	}
	return faults
}

// contradicts finds what can never follow if the runtime tells the truth. // ST-5
func contradicts(former, now corev1.PodStatus) (faults []string) {
	for _, c := range slices.Concat(now.InitContainerStatuses, now.ContainerStatuses) {
		if isOver(now.Phase) && c.State.Running != nil {
			faults = append(faults, fmt.Sprintf("%s while %s runs", now.Phase, c.Name))
		}
		was := statusOf(former, c.Name)
		if was == nil || was.State.Terminated == nil || c.RestartCount != was.RestartCount {
			continue
		}
		if t := was.State.Terminated; !sameEnd(c.State.Terminated, t) && !sameEnd(c.LastTerminationState.Terminated, t) {
			faults = append(faults, fmt.Sprintf("the exit code of %s is lost: %s after %s", c.Name, containerText(c), containerText(*was)))
		}
	}
	return faults
}

func isOver(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

func statusOf(st corev1.PodStatus, container string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		if i := slices.IndexFunc(list, func(c corev1.ContainerStatus) bool { return c.Name == container }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

func sameEnd(a, b *corev1.ContainerStateTerminated) bool {
	return a != nil && a.ExitCode == b.ExitCode && a.Reason == b.Reason
}

// fakeRecorder takes events; the warnings among them are shown.
type fakeRecorder struct {
	w   *harness
	tap *criInterceptor
}

// Record implements agent.Recorder.
func (r fakeRecorder) Record(e *corev1.Event) {
	if _, hidden := r.w.sc.option("no-warnings"); hidden || r.tap.isDead() || e.Type != corev1.EventTypeWarning {
		return
	}
	r.w.trace.add(r.w.trace.label(e.InvolvedObject.UID, e.InvolvedObject.Name), lineEvent, "events", fmt.Sprintf("! %s: %s", e.Reason, e.Message))
}
