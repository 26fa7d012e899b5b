package podsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Event and status reasons, as the kubelet tells them.
const (
	reasonBlocked    = "Blocked"
	reasonDeadline   = "DeadlineExceeded"
	reasonNetwork    = "NetworkNotReady"
	reasonCgroup     = "FailedCreatePodContainer"
	reasonDirectory  = "FailedCreatePodDirectory"
	reasonUsers      = "FailedUserNamespace"
	reasonVolume     = "FailedMount"
	reasonUpdate     = "FailedSync"
	reasonPullSecret = "FailedToRetrieveImagePullSecret"
)

const (
	blockedRetry     = 10 * time.Second
	revalidatePeriod = 10 * time.Minute // between looks for folders of which nothing is needed
)

// ErrNetworkNotReady is why a pod with a network of its own does not start yet.
var ErrNetworkNotReady = errors.New("network is not ready")

// Sync brings pod a step towards its spec: it reports what was seen, puts in
// place what the containers need and carries out the plan. It blocks for as long
// as the runtime takes, image pulls included, and ends early with ctx. An error
// means that the turn broke off; back-offs are no error but the outcome's Due.
func (s *Syncer) Sync(ctx context.Context, pod *corev1.Pod, seen runtime.Pod) (runtime.SyncResult, error) {
	st := s.state(pod.UID)
	defer st.begin()()
	if !st.synced {
		st.synced, st.blocked = true, s.waitedBefore(pod.UID)
	}
	st.inRuntime = len(seen.Sandboxes) > 0
	report := runtime.Report{Observed: seen, Failures: st.failures, Probes: s.probeResults(pod.UID), Blocked: st.blocked}
	told := s.cfg.Statuses.Observe(pod, report)
	if told.Phase == corev1.PodSucceeded || told.Phase == corev1.PodFailed {
		return runtime.SyncResult{Terminal: true}, nil
	}
	st.restarts = st.knownAttempts(told)
	now := time.Now()
	active := st.activeSince(told.StartTime, now)
	deadline, late := isPastActiveDeadline(pod, &active, now)
	if late && s.cfg.PodKiller != nil {
		s.cfg.PodKiller.RequestKill(pod.UID, runtime.Termination{
			GracePeriod: podspec.GracePeriod(pod), Reason: reasonDeadline,
			Message: "Pod was active on the node longer than the specified deadline",
		})
		return runtime.SyncResult{}, nil
	}
	out, err := s.admitted(ctx, pod, seen, st, report)
	if !late {
		out.RequeueAt = earlier(out.RequeueAt, deadline)
	}
	return out, err
}

// restarts are the attempts that were told of each container that was ever made,
// so that counts go on where the runtime lost its state.
func restarts(told corev1.PodStatus) map[string]uint32 {
	known := map[string]uint32{}
	for _, c := range slices.Concat(told.InitContainerStatuses, told.ContainerStatuses, told.EphemeralContainerStatuses) {
		if made := c.ContainerID != "" || c.LastTerminationState.Terminated != nil || c.RestartCount > 0; made {
			known[c.Name] = uint32(max(c.RestartCount, 0))
		}
	}
	return known
}

// admitted is the rest of a sync, behind the slow checks.
func (s *Syncer) admitted(ctx context.Context, pod *corev1.Pod, seen runtime.Pod, st *podState, report runtime.Report) (runtime.SyncResult, error) {
	blocked := s.blocked(ctx, pod, seen, st)
	if ctx.Err() != nil {
		return runtime.SyncResult{}, context.Cause(ctx)
	}
	if blocked != nil {
		st.blocked = blocked
		return s.block(ctx, pod, seen, st, report)
	}
	if st.blocked != nil {
		if over, err := s.unblock(ctx, pod, seen, st, &report); over || err != nil {
			return runtime.SyncResult{RequeueAt: time.Now()}, err
		}
	}
	now := time.Now()
	view := runtime.PlanInput{Pod: st.withEnds(seen, now), Probes: report.Probes, BackOff: s.cfg.BackOff, Restarts: st.restarts}
	plan := runtime.Plan(pod, view, now)
	if hasWork(plan) {
		st.dirsCheckedAt = time.Time{} // what is made now needs its folders
	}
	m, reason, err := s.prepare(ctx, pod, st)
	if err != nil && ctx.Err() != nil {
		return runtime.SyncResult{}, err // it says nothing of the pod
	}
	if err != nil {
		st.failures = map[string]runtime.Failure{"": {Reason: reason, Message: err.Error(), Err: err}}
		report.Failures = st.failures
		s.cfg.Statuses.Observe(pod, report)
		s.emitOnce(ctx, pod, st, reason, err)
		return runtime.SyncResult{}, err
	}
	if s.cfg.Probes != nil {
		s.cfg.Probes.AddPod(pod)
	}
	out, err := s.apply(ctx, pod, plan, m, st, report)
	return s.update(ctx, pod, seen, st, out, err)
}

// update hands changed labels and annotations to a runtime that keeps them. Apply
// did so for a pod that the runtime did not have before.
func (s *Syncer) update(ctx context.Context, pod *corev1.Pod, seen runtime.Pod, st *podState, out runtime.SyncResult, err error) (runtime.SyncResult, error) {
	u, ok := runtime.Capability[runtime.PodUpdater](s.cfg.Runtime)
	if !ok {
		return out, err
	}
	if len(seen.Sandboxes)+len(seen.Containers) > 0 && !sameMetadata(st.handed, pod) {
		out.Unchanged = false
		if failed := u.UpdatePod(ctx, pod); failed != nil {
			failed = fmt.Errorf("update pod: %w", failed)
			s.emitOnce(ctx, pod, st, reasonUpdate, failed)
			return out, errors.Join(err, failed)
		}
	}
	st.handed = pod
	return out, err
}

func sameMetadata(handed, pod *corev1.Pod) bool {
	return handed != nil && maps.Equal(handed.Labels, pod.Labels) && maps.Equal(handed.Annotations, pod.Annotations)
}

func hasWork(plan []runtime.Action) bool {
	return slices.ContainsFunc(plan, func(a runtime.Action) bool { return a.Type != runtime.Wait })
}

func (s *Syncer) apply(ctx context.Context, pod *corev1.Pod, plan []runtime.Action, m runtime.RunOptions, st *podState, report runtime.Report) (runtime.SyncResult, error) {
	var out runtime.SyncResult
	failures := map[string]runtime.Failure{}
	var work []runtime.Action
	for _, a := range plan {
		if a.Type != runtime.Wait {
			work = append(work, a)
			continue
		}
		out.RequeueAt = earlier(out.RequeueAt, a.Until)
		failures[a.Container] = runtime.Failure{Reason: a.Reason, Message: a.Message, Until: a.Until}
	}
	var errs []error
	out.Unchanged = true
	if len(work) > 0 {
		applied := s.cfg.Runtime.Apply(ctx, pod, work, m)
		out.Unchanged = !applied.Changed
		for name, f := range applied.Failures {
			failures[name] = f
			out.RequeueAt = earlier(out.RequeueAt, f.Until)
			if f.Err != nil && !errors.Is(f.Err, runtime.ErrBackOff) {
				errs = append(errs, failureError(name, f))
			}
		}
	}
	// A turn that was cut short says nothing of what it did not come to.
	if ctx.Err() == nil && !sameFailures(st.failures, failures) {
		st.failures = failures
		report.Failures = failures
		s.cfg.Statuses.Observe(pod, report)
	}
	return out, errors.Join(errs...)
}

func failureError(name string, f runtime.Failure) error {
	if name == "" {
		return fmt.Errorf("%s: %w", f.Reason, f.Err)
	}
	return fmt.Errorf("container %s: %s: %w", name, f.Reason, f.Err)
}

// sameFailures compares what a status would show of them.
func sameFailures(a, b map[string]runtime.Failure) bool {
	if len(a) != len(b) {
		return false
	}
	for name, x := range a {
		y, ok := b[name]
		if !ok || x.Reason != y.Reason || x.Message != y.Message {
			return false
		}
	}
	return true
}

// prepare puts in place what the pod's containers stand on. The reason names
// the step that failed.
func (s *Syncer) prepare(ctx context.Context, pod *corev1.Pod, st *podState) (m runtime.RunOptions, reason string, err error) {
	if s.cfg.NetworkReady != nil && !pod.Spec.HostNetwork {
		if err := s.cfg.NetworkReady(); err != nil {
			return m, reasonNetwork, fmt.Errorf("%w: %w", ErrNetworkNotReady, err)
		}
	}
	m = runtime.RunOptions{
		NodeName: s.cfg.Node.Name, HostIPs: s.cfg.Node.IPs, Allocatable: s.cfg.Node.Allocatable, Objects: s.cfg.Objects,
	}
	m.Hostname, m.ClusterDomain = hostname(pod, s.cfg.Node.ClusterDomain)
	if m.DNS, err = resolver(pod, s.cfg.Node); err != nil {
		return m, reasonDirectory, err
	}
	if m.Dir, m.LogDir, err = s.makeDirs(pod, st); err != nil {
		return m, reasonDirectory, err
	}
	if s.cfg.UserNamespaces != nil && !podspec.UsesHostUsers(pod) {
		if m.UIDMappings, m.GIDMappings, err = s.cfg.UserNamespaces.Ensure(pod.UID); err != nil {
			return m, reasonUsers, fmt.Errorf("ids for hostUsers false: %w", err)
		}
	}
	if s.cfg.Cgroups != nil {
		if m.CgroupParent, err = s.cfg.Cgroups.Ensure(ctx, pod); err != nil {
			return m, reasonCgroup, fmt.Errorf("cgroup: %w", err)
		}
	}
	if m.Volumes, err = s.volumes(ctx, pod); err != nil {
		return m, reasonVolume, err
	}
	if s.cfg.Volumes != nil {
		m.SubPath = func(ctx context.Context, container string, _ int, mount corev1.VolumeMount) (string, error) {
			return s.cfg.Volumes.SubPath(ctx, pod.UID, container, m.Volumes[mount.Name], mount.SubPath)
		}
	}
	m.PullSecrets = s.pullSecrets(ctx, pod, st)
	return m, "", nil
}

func (s *Syncer) volumes(ctx context.Context, pod *corev1.Pod) (map[string]runtime.Volume, error) {
	if s.cfg.Volumes != nil {
		v, err := s.cfg.Volumes.Mount(ctx, pod, s.cfg.Objects)
		if err != nil {
			return nil, fmt.Errorf("mount volumes: %w", err)
		}
		return v, nil
	}
	if n := len(pod.Spec.Volumes); n > 0 {
		return nil, fmt.Errorf("pod asks for %d volumes and the agent was built without a volume manager", n)
	}
	return nil, nil
}

// pullSecrets finds what spec.imagePullSecrets names. One that is missing is
// left out, as the API has it: the pull tells whether it was needed.
func (s *Syncer) pullSecrets(ctx context.Context, pod *corev1.Pod, st *podState) []podspec.Object {
	var found []podspec.Object
	for _, ref := range pod.Spec.ImagePullSecrets {
		if s.cfg.Objects == nil {
			break
		}
		if ref.Name == "" { // valid, and found in manifests made of templates
			continue
		}
		o, err := s.cfg.Objects.Object(ctx, podspec.Ref{Kind: podspec.Secret, Namespace: pod.Namespace, Name: ref.Name})
		if err != nil {
			s.emitOnce(ctx, pod, st, reasonPullSecret, fmt.Errorf("pull secret %s/%s: %w", pod.Namespace, ref.Name, err))
			continue
		}
		found = append(found, o)
	}
	return found
}

// makeDirs makes the pod's own folder and its log folder. It looks for them when
// something is to be made, and else once in a while: turns in which nothing
// happens are most of all.
func (s *Syncer) makeDirs(pod *corev1.Pod, st *podState) (dir, logs string, err error) {
	if dir, err = podDir(s.cfg.PodsDir, pod.UID); err != nil {
		return "", "", err
	}
	if logs, err = logDir(s.cfg.LogsDir, pod); err != nil {
		return "", "", err
	}
	if time.Since(st.dirsCheckedAt) < revalidatePeriod {
		return dir, logs, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", fmt.Errorf("pod folder: %w", err)
	}
	if err := s.makeLogs(logs, st.inRuntime); err != nil {
		return "", "", fmt.Errorf("log folder: %w", err)
	}
	st.dirsCheckedAt = time.Now()
	return dir, logs, nil
}
