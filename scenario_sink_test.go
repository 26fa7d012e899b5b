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

// recordingSink compares each status with the last one that this or a previous process of
// the agent sent.
type recordingSink struct {
	w   *harness
	tap *criInterceptor

	mu   sync.Mutex
	sent map[types.UID]bool // a new process sends each status once
}

// SetStatus implements status.Sink.
func (s *recordingSink) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	if s.tap.isDead() {
		return nil // so that the killed agent does not retry
	}
	w := s.w
	w.mu.Lock()
	err := w.sinkErr
	previous, known := w.last[pod.UID]
	if err == nil {
		w.last[pod.UID] = st
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	label := w.trace.label(pod.UID, pod.Name)
	if known && !previous.StartTime.Equal(st.StartTime) && previous.StartTime != nil {
		known = false // a recreated UID
		w.trace.add(label, lineStatus, "", recreated)
	}
	if known {
		s.mu.Lock()
		repeated := s.sent[pod.UID] && equality.Semantic.DeepEqual(previous, st)
		s.sent[pod.UID] = true
		s.mu.Unlock()
		if repeated {
			w.t.Errorf("%s: status of %s sent twice", w.trace.String(), label)
		}
		problems := goesBack(previous, st)
		if !w.chance.lies() {
			problems = append(problems, contradicts(previous, st)...)
		}
		for _, problem := range problems {
			w.t.Errorf("%s: status of %s: %s", w.trace.String(), label, problem)
		}
	}
	w.trace.add(label, lineStatus, "", statusText(pod, st))
	return nil
}

// DeleteStatus implements status.Deleter.
func (s *recordingSink) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	if s.tap.isDead() {
		return nil // so that the killed agent does not retry
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
			w.t.Errorf("%s is reported as deleted while %s runs", label, c.GetMetadata().GetName())
		}
	}
	w.trace.add(label, lineStatus, "", deleted)
	return nil
}

// goesBack returns the changes from the previous status that must never occur, whatever
// the runtime reports. // ST-5
func goesBack(previous, now corev1.PodStatus) (problems []string) {
	if isOver(previous.Phase) && now.Phase != previous.Phase {
		problems = append(problems, fmt.Sprintf("%s after %s", now.Phase, previous.Phase))
	}
	for _, c := range slices.Concat(now.InitContainerStatuses, now.ContainerStatuses) {
		if c.Ready && c.State.Running == nil && (c.State.Terminated == nil || c.State.Terminated.ExitCode != 0) {
			problems = append(problems, fmt.Sprintf("%s is ready and does not run", c.Name))
		}
		if was := statusOf(previous, c.Name); was != nil && c.RestartCount < was.RestartCount {
			problems = append(problems, fmt.Sprintf("restarts of %s go back from %d to %d", c.Name, was.RestartCount, c.RestartCount))
		}
	}
	return problems
}

// contradicts returns the changes from the previous status that must never occur if the
// runtime reports the truth. // ST-5
func contradicts(previous, now corev1.PodStatus) (problems []string) {
	for _, c := range slices.Concat(now.InitContainerStatuses, now.ContainerStatuses) {
		if isOver(now.Phase) && c.State.Running != nil {
			problems = append(problems, fmt.Sprintf("%s while %s runs", now.Phase, c.Name))
		}
		was := statusOf(previous, c.Name)
		if was == nil || was.State.Terminated == nil || c.RestartCount != was.RestartCount {
			continue
		}
		if t := was.State.Terminated; !sameEnd(c.State.Terminated, t) && !sameEnd(c.LastTerminationState.Terminated, t) {
			problems = append(problems, fmt.Sprintf("the exit code of %s is lost: %s after %s", c.Name, containerText(c), containerText(*was)))
		}
	}
	return problems
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

// fakeRecorder records the warnings of an agent in the trace.
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
