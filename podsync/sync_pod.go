package podsync

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Reasons of events and statuses of pods that a runtime.PodSyncer runs.
const (
	reasonCreatePod      = "FailedCreatePod"
	reasonUpdatePod      = "FailedUpdatePod"
	reasonCreatePodError = "CreatePodError"
	reasonPodLost        = "PodLost"
)

// errPodLost is the text of the event for a pod that is created again.
var errPodLost = errors.New("the pod does not exist in the runtime any more and is created again")

// syncPod is the last part of a sync with a runtime that runs pods and not containers.
func (s *Syncer) syncPod(ctx context.Context, syncer runtime.PodSyncer, pod *corev1.Pod, observed runtime.Pod, st *podState, report runtime.Report) (runtime.SyncResult, error) {
	if observed.Object == nil && st.hasObject {
		s.emitOnce(ctx, pod, st, reasonPodLost, errPodLost)
	}
	result, err := syncer.SyncPod(ctx, pod, observed)
	if err == nil {
		st.failures = nil
		return result, nil
	}
	if ctx.Err() != nil {
		return result, err // the call was cancelled; the pod is not at fault
	}
	if observed.Object != nil {
		s.emitOnce(ctx, pod, st, reasonUpdatePod, err)
		return result, err
	}
	s.emitOnce(ctx, pod, st, reasonCreatePod, err)
	if errors.Is(err, runtime.ErrInvalid) && s.cfg.PodKiller != nil {
		s.cfg.PodKiller.RequestKill(pod.UID, runtime.Termination{
			GracePeriod: podspec.GracePeriod(pod), Reason: reasonCreatePodError, Message: err.Error(),
		})
		return runtime.SyncResult{Unchanged: result.Unchanged}, nil
	}
	st.failures = map[string]runtime.Failure{"": {Reason: reasonCreatePodError, Message: err.Error(), Err: err}}
	report.Failures = st.failures
	s.cfg.Statuses.Observe(pod, report)
	return result, err
}
