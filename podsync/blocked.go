package podsync

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// A pod that a slow check refuses waits, whatever of it has run before: it is
// stopped, nothing that it left is a result, and it starts over when it is admitted.
// So its dead containers are removed while it waits: whoever takes it over from there,
// another process for one, has nothing to mistake for its end.

// blocked asks the slow checks. Silence holds back a pod that does not run yet
// and leaves one that runs alone.
func (s *Syncer) blocked(ctx context.Context, pod *corev1.Pod, seen runtime.Pod, st *podState) *runtime.Failure {
	if len(s.cfg.SoftAdmitters) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AdmitTimeout)
	defer cancel()
	for i := range s.cfg.SoftAdmitters {
		v, err := s.ask(ctx, i, pod, st)
		switch {
		case err != nil && seen.CouldHaveRunningContainers():
			continue
		case err != nil:
			return &runtime.Failure{Reason: reasonBlocked, Message: fmt.Sprintf("admission check: %v", err), Err: err}
		case !v.Admitted:
			return &runtime.Failure{Reason: reasonBlocked, Message: v.Reason + ": " + v.Message}
		}
	}
	return nil
}

// waitedBefore returns why the pod waits by what a former process told of it.
func (s *Syncer) waitedBefore(uid types.UID) *runtime.Failure {
	told, ok := s.cfg.Statuses.Get(uid)
	if !ok || told.Phase != corev1.PodPending || told.Reason != reasonBlocked {
		return nil
	}
	return &runtime.Failure{Reason: told.Reason, Message: told.Message}
}

// block ends a turn of a pod that is refused: what runs is stopped, and in a later
// turn what that left is removed.
func (s *Syncer) block(ctx context.Context, pod *corev1.Pod, seen runtime.Pod, st *podState, report runtime.Report) (runtime.SyncResult, error) {
	if was := report.Blocked; was == nil || was.Message != st.blocked.Message {
		report.Blocked = st.blocked
		s.cfg.Statuses.Observe(pod, report)
	}
	s.emitOnce(ctx, pod, st, reasonBlocked, errors.New(st.blocked.Message))
	out := runtime.SyncResult{RequeueAt: time.Now().Add(blockedRetry)}
	switch {
	case seen.CouldHaveRunningContainers() || seen.ReadySandbox() != nil:
		return out, s.cfg.Runtime.Kill(ctx, pod, seen, runtime.Termination{GracePeriod: podspec.GracePeriod(pod)})
	case hasRemains(seen):
		return out, s.startOver(ctx, seen, st)
	}
	out.Unchanged = true
	return out, nil
}

// unblock goes on with a pod that was refused until now. It reports whether what it
// left had to be removed first, so that the turn is over.
func (s *Syncer) unblock(ctx context.Context, pod *corev1.Pod, seen runtime.Pod, st *podState, report *runtime.Report) (over bool, err error) {
	if !seen.CouldHaveRunningContainers() && hasRemains(seen) {
		return true, s.startOver(ctx, seen, st)
	}
	st.blocked, report.Blocked = nil, nil
	s.cfg.Statuses.Observe(pod, *report)
	return false, nil
}

func hasRemains(seen runtime.Pod) bool { return len(seen.Sandboxes)+len(seen.Containers) > 0 }

// startOver removes what is dead, and remembers the attempts, so that the next ones
// have other numbers and logs.
func (s *Syncer) startOver(ctx context.Context, seen runtime.Pod, st *podState) error {
	if st.attempts == nil {
		st.attempts = map[string]uint32{}
	}
	for i := range seen.Containers {
		c := &seen.Containers[i]
		st.attempts[c.Name] = max(st.attempts[c.Name], c.Attempt)
	}
	if err := s.cfg.Runtime.Remove(ctx, seen); err != nil {
		return fmt.Errorf("remove containers of a pod that waits: %w", err)
	}
	return nil
}

// knownAttempts are the attempts that were told of each container, and those that
// were removed since.
func (st *podState) knownAttempts(told corev1.PodStatus) map[string]uint32 {
	known := restarts(told)
	for name, attempt := range st.attempts {
		known[name] = max(known[name], attempt)
	}
	return known
}
