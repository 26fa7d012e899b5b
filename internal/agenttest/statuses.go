package agenttest

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/status"
)

var _ status.Sink = (*Statuses)(nil)

// Statuses is a sink that keeps the last status of each pod, also after its deletion. The
// zero value is ready to use.
type Statuses struct {
	mu   sync.Mutex // guards last
	last map[string]corev1.PodStatus
}

// SetStatus implements status.Sink.
func (s *Statuses) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[string]corev1.PodStatus{}
	}
	s.last[pod.Name] = st
	return nil
}

// Of returns the last status of the pod with that name, or the zero value.
func (s *Statuses) Of(name string) corev1.PodStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[name]
}

// Len returns the number of pods with a status.
func (s *Statuses) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.last)
}
