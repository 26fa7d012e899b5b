package agenttest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// sink records statuses in the trace, and compares each with the last one that this or a
// previous process of the agent sent.
type sink struct {
	h           *Harness
	interceptor *interceptor

	mu   sync.Mutex         // guards sent
	sent map[types.UID]bool // a new process sends each status once
}

// SetStatus implements status.Sink.
func (s *sink) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	if s.interceptor.isDead() {
		return nil // so that the killed agent does not retry
	}
	h := s.h
	h.mu.Lock()
	err := h.sinkErr
	previous, known := h.last[pod.UID]
	if err == nil {
		h.last[pod.UID] = st
	}
	h.mu.Unlock()
	if err != nil {
		return err
	}
	label := h.Trace.Label(pod.UID, pod.Name)
	if known && !previous.StartTime.Equal(st.StartTime) && previous.StartTime != nil {
		known = false // a recreated UID
		h.Trace.add(label, lineStatus, "", recreated)
	}
	if known {
		s.check(pod.UID, label, &previous, &st)
	}
	h.Trace.add(label, lineStatus, "", statusText(pod, st))
	return nil
}

func (s *sink) check(uid types.UID, label string, previous, now *corev1.PodStatus) {
	s.mu.Lock()
	repeated := s.sent[uid] && equality.Semantic.DeepEqual(previous, now)
	s.sent[uid] = true
	s.mu.Unlock()
	if repeated {
		s.h.t.Errorf("%s: status of %s sent twice", s.h.Trace, label)
	}
	for _, problem := range StatusProblems(previous, now, s.h.config.Faults.Lies()) {
		s.h.t.Errorf("%s: status of %s: %s", s.h.Trace, label, problem)
	}
}

// DeleteStatus implements status.Deleter.
func (s *sink) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	if s.interceptor.isDead() {
		return nil // so that the killed agent does not retry
	}
	h := s.h
	label := h.Trace.Label(pod.UID, pod.Name)
	h.mu.Lock()
	err := h.sinkErr
	delete(h.last, pod.UID)
	h.mu.Unlock()
	if err != nil {
		return err
	}
	for _, c := range h.Running() {
		if c.GetLabels()[runtime.LabelPodUID] == string(pod.UID) && !h.config.Faults.Lies() {
			h.t.Errorf("%s is reported as deleted while %s runs", label, c.GetMetadata().GetName())
		}
	}
	h.Trace.add(label, lineStatus, "", deleted)
	return nil
}

// StatusProblems returns the changes from the previous status of a pod that must not
// occur. lies says that the runtime may have reported what is not so, which excuses a lost
// exit code, and a running container of a finished pod. // ST-5
func StatusProblems(previous, now *corev1.PodStatus, lies bool) (problems []string) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if isFinal(previous.Phase) && now.Phase != previous.Phase {
		add("%s after %s", now.Phase, previous.Phase)
	}
	for _, c := range slices.Concat(now.InitContainerStatuses, now.ContainerStatuses) {
		if c.Ready && c.State.Running == nil && (c.State.Terminated == nil || c.State.Terminated.ExitCode != 0) {
			add("%s is ready and does not run", c.Name)
		}
		was := statusOf(previous, c.Name)
		if was != nil && c.RestartCount < was.RestartCount {
			add("restarts of %s go back from %d to %d", c.Name, was.RestartCount, c.RestartCount)
		}
		if lies {
			continue
		}
		if isFinal(now.Phase) && c.State.Running != nil {
			add("%s while %s runs", now.Phase, c.Name)
		}
		if was != nil && losesTermination(was, &c) {
			add("the exit code of %s is lost: %s after %s", c.Name, ContainerText(c), ContainerText(*was))
		}
	}
	return problems
}

// losesTermination reports whether a status lacks the termination in the previous one.
func losesTermination(was, is *corev1.ContainerStatus) bool {
	t := was.State.Terminated
	return t != nil && is.RestartCount == was.RestartCount &&
		!equalTermination(is.State.Terminated, t) && !equalTermination(is.LastTerminationState.Terminated, t)
}

func equalTermination(a, b *corev1.ContainerStateTerminated) bool {
	return a != nil && a.ExitCode == b.ExitCode && a.Reason == b.Reason
}

func isFinal(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

func statusOf(st *corev1.PodStatus, container string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		if i := slices.IndexFunc(list, func(c corev1.ContainerStatus) bool { return c.Name == container }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// warnings is a recorder that writes the warnings of an agent to the trace.
type warnings struct {
	h           *Harness
	interceptor *interceptor
}

// Record implements agent.Recorder.
func (r warnings) Record(e *corev1.Event) {
	if r.h.config.NoWarnings || r.interceptor.isDead() || e.Type != corev1.EventTypeWarning {
		return
	}
	r.h.Trace.add(r.h.Trace.Label(e.InvolvedObject.UID, e.InvolvedObject.Name), lineEvent, "events", fmt.Sprintf("! %s: %s", e.Reason, e.Message))
}
