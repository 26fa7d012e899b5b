package podsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// A pod that a SoftAdmitter rejects waits, whatever has run of it before. It is
// stopped, the results of its containers do not count, and it starts from the beginning
// when it is admitted. Its exited containers are removed while it waits, so that no
// other process that adopts the pod mistakes them for the results of the pod.

// blockedRetry is the time between calls of the SoftAdmitters for a pod that waits.
const blockedRetry = 10 * time.Second

// runSoftAdmitters returns why the pod must wait, or nil. An admitter that returns an
// error blocks a pod that does not run yet, and leaves a running one alone.
func (s *Syncer) runSoftAdmitters(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, st *podState) *runtime.Failure {
	if len(s.cfg.SoftAdmitters) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AdmitTimeout)
	defer cancel()
	for i := range s.cfg.SoftAdmitters {
		result, err := s.askAdmitter(ctx, i, pod, st)
		switch {
		case err != nil && observed.CouldHaveRunningContainers():
			continue
		case err != nil:
			return &runtime.Failure{Reason: reasonBlocked, Message: fmt.Sprintf("admission check: %v", err), Err: err}
		case !result.Admitted:
			return &runtime.Failure{Reason: reasonBlocked, Message: result.Reason + ": " + result.Message}
		}
	}
	return nil
}

// blockedBefore returns why the pod waits according to the status that a previous
// process has saved.
func blockedBefore(status corev1.PodStatus) *runtime.Failure {
	if status.Phase != corev1.PodPending || status.Reason != reasonBlocked {
		return nil
	}
	return &runtime.Failure{Reason: status.Reason, Message: status.Message}
}

// block ends the sync of a pod that must wait: running containers are stopped, and a
// later sync removes them.
func (s *Syncer) block(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, st *podState, report runtime.Report) (runtime.SyncResult, error) {
	if previous := report.Blocked; previous == nil || previous.Message != st.blocked.Message {
		report.Blocked = st.blocked
		s.cfg.Statuses.Observe(pod, report)
	}
	if s.emitOnce(ctx, pod, st, reasonBlocked, errors.New(st.blocked.Message)) {
		s.cfg.Logger.Info("pod blocked by soft admission", logattr.Pod(pod), logattr.PodUID(pod.UID), slog.String("message", st.blocked.Message))
	}
	result := runtime.SyncResult{RequeueAt: time.Now().Add(blockedRetry)}
	switch {
	case observed.CouldHaveRunningContainers() || observed.ReadySandbox() != nil:
		grace := max(podspec.GracePeriod(pod), time.Second) // none would be by force
		return result, s.cfg.Runtime.Kill(ctx, pod, observed, runtime.Termination{GracePeriod: grace})
	case hasRemains(observed):
		return result, s.removeRemains(ctx, observed, st)
	}
	result.Unchanged = true
	return result, nil
}

// unblock continues with a pod that has waited until now. It reports whether exited
// containers had to be removed first, which ends the sync.
func (s *Syncer) unblock(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, st *podState, report *runtime.Report) (removed bool, err error) {
	if !observed.CouldHaveRunningContainers() && hasRemains(observed) {
		return true, s.removeRemains(ctx, observed, st)
	}
	st.blocked, report.Blocked = nil, nil
	s.cfg.Logger.Info("pod unblocked by soft admission", logattr.Pod(pod), logattr.PodUID(pod.UID))
	s.cfg.Statuses.Observe(pod, *report)
	return false, nil
}

func hasRemains(observed runtime.Pod) bool {
	return !observed.IsEmpty()
}

// removeRemains removes exited containers and stores their attempts, so that the next
// ones get other attempts and therefore other logs.
func (s *Syncer) removeRemains(ctx context.Context, observed runtime.Pod, st *podState) error {
	if st.attempts == nil {
		st.attempts = map[string]uint32{}
	}
	for i := range observed.Containers {
		c := &observed.Containers[i]
		st.attempts[c.Name] = max(st.attempts[c.Name], c.Attempt)
	}
	if err := s.cfg.Runtime.Remove(ctx, observed); err != nil {
		return fmt.Errorf("remove containers of blocked pod: %w", err)
	}
	return nil
}

// knownAttempts returns the attempts of all containers by the status, and of those that
// were removed since.
func (st *podState) knownAttempts(status corev1.PodStatus) map[string]uint32 {
	attempts := reportedAttempts(status)
	for name, attempt := range st.attempts {
		attempts[name] = max(attempts[name], attempt)
	}
	return attempts
}
