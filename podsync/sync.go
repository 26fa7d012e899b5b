package podsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Reasons of events and statuses; the kubelet uses the same.
const (
	reasonBlocked     = "Blocked"
	reasonDeadline    = "DeadlineExceeded"
	reasonNetwork     = "NetworkNotReady"
	reasonCgroup      = "FailedCreatePodContainer"
	reasonDirectory   = "FailedCreatePodDirectory"
	reasonUsers       = "FailedUserNamespace"
	reasonSandbox     = "FailedCreatePodSandBox"
	reasonVolume      = "FailedMount"
	reasonVolumeLimit = "VolumeAttachmentLimitExceeded"
	reasonUpdate      = "FailedSync"
	reasonPullSecret  = "FailedToRetrieveImagePullSecret"
	reasonKill        = "FailedKillPod"
	reasonCleanup     = "FailedCleanup"
	reasonBackOff     = "BackOff"
	reasonResize      = "ResizeContainerError"
	reasonDNS         = "DNSConfigForming"
	reasonClusterDNS  = "MissingClusterDNS"
)

// Sync brings a pod closer to its spec: it reports the observed state, provides what
// the containers depend on, and executes the plan. It blocks for as long as the runtime
// takes, image pulls included, and returns early when ctx ends. An error means that the
// sync was aborted. A back-off is not an error; it sets SyncResult.RequeueAt.
func (s *Syncer) Sync(ctx context.Context, pod *corev1.Pod, observed runtime.Pod) (runtime.SyncResult, error) {
	st := s.state(pod.UID)
	defer st.collectErrors()()
	if !st.synced {
		s.restore(pod, st, observed)
		if s.hasEndedLate(pod, observed) {
			s.killOverdue(pod)
			return runtime.SyncResult{Unchanged: true}, nil
		}
	}
	st.inRuntime = len(observed.Sandboxes) > 0
	s.logExits(pod, st, observed)
	observed = st.resize.markMemoryRequests(pod, s.markExclusiveCPUs(pod, observed))
	report := s.report(pod, st, observed)
	report.Blocked = st.blocked
	status := s.cfg.Statuses.Observe(pod, report)
	if podspec.IsTerminalPhase(status.Phase) {
		return runtime.SyncResult{Terminal: true, Unchanged: true}, nil
	}
	s.recordResize(pod, st, &status)
	now := time.Now()
	active := st.activeSince(status.StartTime, now)
	deadline, exceeded := isPastActiveDeadline(pod, &active, now)
	if exceeded && s.cfg.PodKiller != nil {
		s.killOverdue(pod)
		return runtime.SyncResult{Unchanged: true}, nil
	}
	result, err := s.syncAdmitted(ctx, pod, observed, st, report, status)
	if err == nil && result.Unchanged {
		s.recordResized(pod, st, &status)
	}
	if !exceeded {
		result.RequeueAt = earlier(result.RequeueAt, deadline)
	}
	return result, err
}

// killOverdue has a pod fail that is past its active deadline.
func (s *Syncer) killOverdue(pod *corev1.Pod) {
	const message = "Pod was active on the node longer than the specified deadline"
	s.record(pod, corev1.EventTypeNormal, reasonDeadline, message)
	s.cfg.PodKiller.RequestKill(pod.UID, runtime.Termination{
		GracePeriod: podspec.GracePeriod(pod), Reason: reasonDeadline, Message: message,
	})
}

// rejectForVolumes has a pod fail for which the node has no place for a volume, so that its controller makes another
// one, and reports whether it did. A static pod waits, as nothing would replace it, and one that runs is left alone.
func (s *Syncer) rejectForVolumes(pod *corev1.Pod, observed runtime.Pod, err error) bool {
	if !errors.Is(err, runtime.ErrVolumeLimit) || s.cfg.PodKiller == nil || podspec.IsStatic(pod) || observed.CouldHaveRunningContainers() {
		return false
	}
	s.record(pod, corev1.EventTypeWarning, reasonVolumeLimit, err.Error())
	if s.cfg.Hooks.Rejected != nil {
		s.cfg.Hooks.Rejected(pod, reasonVolumeLimit, err.Error())
	}
	s.cfg.PodKiller.RequestKill(pod.UID, runtime.Termination{
		GracePeriod: podspec.GracePeriod(pod), Reason: reasonVolumeLimit, Message: podspec.RejectedPrefix + err.Error(),
	})
	return true
}

// report returns what is reported of a pod in each phase of its work.
func (s *Syncer) report(pod *corev1.Pod, st *podState, observed runtime.Pod) runtime.Report {
	return runtime.Report{
		Observed: observed, Failures: st.failures, Probes: st.withStops(s.probeResults(pod.UID, observed), &observed), Resources: s.resourceStatuses(pod),
		Unreleased: s.hasUnreleased(pod),
	}
}

// restore prepares the first sync of a pod in this process: it continues from the
// status that a previous process has saved.
func (s *Syncer) restore(pod *corev1.Pod, st *podState, observed runtime.Pod) {
	st.synced = true
	s.restoreStops(pod, st, &observed)
	status, ok := s.cfg.Statuses.Get(pod.UID)
	if !ok {
		return
	}
	st.blocked = blockedBefore(status)
	st.logged.restore(status, observed)
	st.resize.restore(&status)
	st.resize.restoreMemoryRequests(pod, &status)
}

// reportedAttempts returns the attempt of each container that was ever created, by the
// status of the pod. Restart counts continue from it after the runtime has lost its
// state.
func reportedAttempts(status corev1.PodStatus) map[string]uint32 {
	attempts := map[string]uint32{}
	for c := range podspec.ContainerStatuses(&status) {
		if podspec.WasCreated(c) {
			attempts[c.Name] = uint32(max(c.RestartCount, 0))
		}
	}
	return attempts
}

// syncAdmitted is the part of a sync that requires soft admission.
func (s *Syncer) syncAdmitted(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, st *podState, report runtime.Report, status corev1.PodStatus) (runtime.SyncResult, error) {
	blocked := s.runSoftAdmitters(ctx, pod, observed, st)
	if ctx.Err() != nil {
		return runtime.SyncResult{}, context.Cause(ctx)
	}
	if blocked != nil {
		st.blocked = blocked
		return s.block(ctx, pod, observed, st, report)
	}
	if st.blocked != nil {
		switch removed, err := s.unblock(ctx, pod, observed, st, &report); {
		case err != nil:
			return runtime.SyncResult{}, err
		case removed:
			return runtime.SyncResult{RequeueAt: time.Now()}, nil
		}
	}
	if syncer, ok := runtime.Capability[runtime.PodSyncer](s.cfg.Runtime); ok {
		defer func() { st.hasObject = observed.Object != nil }()
		return s.syncPod(ctx, syncer, pod, observed, st, report)
	}
	plan := s.plan(ctx, pod, observed, st, report, status)
	s.logPlan(ctx, pod, plan)
	s.recordSandboxChange(pod, st, plan)
	work := hasWork(plan)
	st.resizes, st.sandboxID = slices.ContainsFunc(plan, isResize), keptSandbox(observed, plan)
	if work {
		st.dirsCheckedAt = time.Time{} // the directories must exist for the plan
	}
	opts, reason, err := s.prepare(ctx, pod, st, work)
	if err != nil {
		if ctx.Err() != nil {
			return runtime.SyncResult{}, err // the call was cancelled; the pod is not at fault
		}
		if s.rejectForVolumes(pod, observed, err) {
			return runtime.SyncResult{Unchanged: true}, nil
		}
		st.failures = map[string]runtime.Failure{"": {Reason: reason, Message: err.Error(), Err: err}}
		report.Failures = st.failures
		s.cfg.Statuses.Observe(pod, report)
		s.emitOnce(ctx, pod, st, reason, err)
		return runtime.SyncResult{}, err
	}
	if s.cfg.Probes != nil {
		s.cfg.Probes.AddPod(pod)
	}
	result, err := s.apply(ctx, pod, plan, opts, st, report)
	return s.updateMetadata(ctx, pod, observed, st, result, err)
}

// updateMetadata passes changed labels and annotations to a runtime that stores them. A
// pod that was not in the runtime before has got them from Apply.
func (s *Syncer) updateMetadata(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, st *podState, result runtime.SyncResult, err error) (runtime.SyncResult, error) {
	updater, ok := runtime.Capability[runtime.PodUpdater](s.cfg.Runtime)
	if !ok {
		return result, err
	}
	if hasRemains(observed) && !sameMetadata(st.updated, pod) {
		result.Unchanged, result.Settled = false, false
		if updateErr := updater.UpdatePod(ctx, pod); updateErr != nil {
			updateErr = fmt.Errorf("update pod: %w", updateErr)
			s.emitOnce(ctx, pod, st, reasonUpdate, updateErr)
			return result, errors.Join(err, updateErr)
		}
	}
	st.updated = pod
	return result, err
}

func sameMetadata(previous, pod *corev1.Pod) bool {
	return previous != nil && maps.Equal(previous.Labels, pod.Labels) && maps.Equal(previous.Annotations, pod.Annotations)
}

// isResize reports whether an action changes the resources of a running container, in place or by a
// restart.
func isResize(a runtime.Action) bool {
	return a.Type == runtime.UpdateResources || a.Type == runtime.KillContainer && a.Reason == runtime.ReasonResized
}

// isResizeStep reports whether an action is part of the resize of a running container: a restart for it is two.
func isResizeStep(a runtime.Action) bool {
	return isResize(a) || a.Type == runtime.StartContainer && a.Reason == runtime.ReasonResized
}

func hasWork(plan []runtime.Action) bool {
	return slices.ContainsFunc(plan, func(a runtime.Action) bool { return a.Type != runtime.Wait })
}

func (s *Syncer) apply(ctx context.Context, pod *corev1.Pod, plan []runtime.Action, opts runtime.RunOptions, st *podState, report runtime.Report) (runtime.SyncResult, error) {
	if len(plan) == 0 && len(st.failures) == 0 && st.limitErr == nil {
		return runtime.SyncResult{Unchanged: true, Settled: s.isSettled(pod)}, nil
	}
	var result runtime.SyncResult
	failures := map[string]runtime.Failure{}
	var work []runtime.Action
	for _, a := range plan {
		switch {
		case a.Type == runtime.Wait:
			result.RequeueAt = earlier(result.RequeueAt, a.Until)
			failures[a.Container] = runtime.Failure{Reason: a.Reason, Message: a.Message, Until: a.Until}
		case a.Type == runtime.UpdateResources && st.limitErr != nil, isResizeStep(a) && st.rejected:
			failures[a.Container] = runtime.Failure{Reason: reasonResize, Message: st.limitErr.Error(), Err: st.limitErr}
		default:
			work = append(work, a)
		}
	}
	var errs []error
	if st.limitErr != nil {
		failures[""] = runtime.Failure{Reason: corev1.PodReasonError, Message: st.limitErr.Error(), Err: st.limitErr}
		errs = append(errs, st.limitErr)
	}
	result.Unchanged = true
	if len(work) > 0 {
		s.recordStops(pod, st, &report.Observed, opts.Dir, work)
		opts.SandboxReady = func(made runtime.Sandbox) { s.observeSandbox(pod, &report, made) }
		applied := s.cfg.Runtime.Apply(ctx, pod, work, opts)
		result.Unchanged = !applied.Changed
		for name, f := range applied.Failures {
			failures[name] = f
			result.RequeueAt = earlier(result.RequeueAt, f.Until)
			if f.Err != nil && !errors.Is(f.Err, runtime.ErrBackOff) {
				errs = append(errs, failureError(name, f))
			}
		}
		if st.resize.forgetMemoryRequests(work, failures) {
			result.RequeueAt = time.Now()
		}
		if err := s.lowerLimits(ctx, pod, st, work, failures); err != nil {
			failures[""] = runtime.Failure{Reason: corev1.PodReasonError, Message: err.Error(), Err: err}
			errs = append(errs, err)
		}
	}
	// A cancelled Apply reports failures of actions that it has not tried.
	if ctx.Err() == nil {
		s.logBackOffs(pod, st, failures)
		if !sameFailures(st.failures, failures) {
			st.failures = failures
			report.Failures = failures
			s.cfg.Statuses.Observe(pod, report)
		}
	}
	return result, errors.Join(errs...)
}

// lowerLimits gives the cgroup of a pod its lower limits after its containers have got theirs. If
// one has not, what its containers may use is more than the pod's limit would be, and the kernel
// could kill another one for that.
func (s *Syncer) lowerLimits(ctx context.Context, pod *corev1.Pod, st *podState, work []runtime.Action, failures map[string]runtime.Failure) error {
	resized := false
	for _, a := range work {
		_, failed := failures[a.Container]
		if failed && (a.Type == runtime.UpdateResources || a.Type == runtime.KillContainer) {
			return nil
		}
		resized = resized || isResize(a)
	}
	if _, failed := failures[""]; failed || !resized || ctx.Err() != nil {
		return nil //nolint:nilerr // there is nothing to lower, or a later sync does it
	}
	return s.completeLimits(ctx, pod, st)
}

func failureError(name string, f runtime.Failure) error {
	if name == "" {
		return fmt.Errorf("%s: %w", f.Reason, f.Err)
	}
	return fmt.Errorf("container %s: %s: %w", name, f.Reason, f.Err)
}

// sameFailures reports whether the failures result in the same status.
func sameFailures(a, b map[string]runtime.Failure) bool {
	return maps.EqualFunc(a, b, func(x, y runtime.Failure) bool { return x.Reason == y.Reason && x.Message == y.Message })
}
