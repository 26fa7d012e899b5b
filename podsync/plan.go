package podsync

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/podinput"
	"github.com/sublet-dev/agent/runtime"
)

// isSettled reports whether a pod for which nothing is planned needs nothing until a sync of it is
// requested: all that its syncs depend on announces its changes. Injectors and SoftAdmitters
// need not, and the content of volumes is updated by syncs.
func (s *Syncer) isSettled(pod *corev1.Pod) bool {
	return len(s.cfg.Injectors) == 0 && len(s.cfg.SoftAdmitters) == 0 &&
		!slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir == nil && v.HostPath == nil })
}

// plan returns the actions that the pod needs now. Where there were none and nothing has changed
// since, there are none again: time only ends back-offs, which are actions.
func (s *Syncer) plan(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, st *podState, report runtime.Report, status corev1.PodStatus) []runtime.Action {
	if st.settled.Equal(pod, &observed, report.Probes) {
		return nil
	}
	now := time.Now()
	injections := s.currentInjections(ctx, pod, observed)
	observed = s.markExclusiveCPUs(pod, observed) // some may be new
	plan := runtime.Plan(pod, runtime.PlanInput{
		Pod: st.withEnds(observed, now), Probes: report.Probes, BackOff: s.cfg.BackOff, Restarts: st.knownAttempts(status), Injections: injections,
	}, now)
	st.settled = podinput.Input{}
	if len(plan) == 0 && len(s.cfg.Injectors) == 0 && !observed.ObservedAt.IsZero() { // what Injectors give may change at any time
		st.settled = podinput.Of(pod, &observed, report.Probes)
	}
	return plan
}
