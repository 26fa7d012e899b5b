package podsync

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// announcedResources are what the runtime knows of the resources of a pod as a whole.
type announcedResources struct {
	pod       *corev1.Pod          // which has them, or had them before the resize in progress; nil: unknown
	resources runtime.PodResources // while the pod is resized the greater ones, of this pod and the resized one
}

// keptSandbox returns the sandbox that the plan keeps, or "".
func keptSandbox(observed runtime.Pod, plan []runtime.Action) string {
	s := observed.ReadySandbox()
	for i := range plan {
		if t := plan[i].Type; t == runtime.KillSandbox || t == runtime.CreateSandbox {
			return ""
		}
	}
	if s == nil {
		return ""
	}
	return s.ID
}

// changedResources returns the resources of a pod as a whole, and whether they are to be announced to
// the runtime: it has a use for them, and knows others. With a new sandbox it gets them anyway. A process
// that has just started knows only from its plan that a pod is to be resized, or from the status that an earlier
// one has not completed a resize.
func (s *Syncer) changedResources(pod *corev1.Pod, st *podState) (desired runtime.PodResources, changed bool) {
	if st.announced.pod == pod {
		return desired, false
	}
	if _, ok := runtime.Capability[runtime.PodResourcesUpdater](s.cfg.Runtime); !ok {
		return desired, false
	}
	desired = runtime.PodResourcesOf(pod)
	if exclusive := PodHasExclusiveCPUs(s.cfg.Logger, s.cfg.Injectors); exclusive != nil && exclusive(pod) {
		desired.CPULimit = 0
	}
	known := st.announced.pod != nil
	if st.sandboxID == "" || known && desired == st.announced.resources || !known && !st.resizes && !st.resize.started {
		st.announced = announcedResources{pod, desired}
		return desired, false
	}
	return desired, true
}

// announce announces to the runtime what a pod that gets the desired resources may have from now on.
func (s *Syncer) announce(ctx context.Context, pod *corev1.Pod, st *podState, now, desired runtime.PodResources) error {
	updater, _ := runtime.Capability[runtime.PodResourcesUpdater](s.cfg.Runtime)
	if err := updater.UpdatePodResources(ctx, pod, st.sandboxID, now); err != nil {
		return fmt.Errorf("resize pod: %w", err)
	}
	st.announced.resources = now
	if now == desired {
		st.announced.pod = pod
	}
	return nil
}

// announceRaise announces what a pod gets more of. What it gets less of stays to be announced, unless
// what it had is unknown.
func (s *Syncer) announceRaise(ctx context.Context, pod *corev1.Pod, st *podState, desired runtime.PodResources) error {
	now := desired
	if st.announced.pod != nil {
		if now = st.announced.resources.RaisedTo(desired); now == st.announced.resources {
			return nil
		}
	}
	return s.announce(ctx, pod, st, now, desired)
}

// setLimits brings the cgroup of a pod to its limits, for now to the greater ones if its containers are to be
// resized, and announces other resources of the pod to the runtime before, which may reject them. Why containers
// cannot be resized is limitErr; an error is why they cannot be started.
func (s *Syncer) setLimits(ctx context.Context, pod *corev1.Pod, st *podState) (parent string, err error) {
	desired, changed := s.changedResources(pod, st)
	limited := pod
	var rejected error
	if changed {
		if rejected = s.announceRaise(ctx, pod, st, desired); rejected != nil && st.announced.pod != nil {
			limited = st.announced.pod // whose limits the cgroup keeps
		}
		changed = st.announced.pod != pod
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	parent, err = s.setCgroup(ctx, limited, changed || st.resizes)
	if err == nil && rejected == nil && changed && !st.resizes {
		// No container is to be resized first.
		if rejected = s.announce(ctx, pod, st, desired, desired); rejected == nil {
			parent, err = s.setCgroup(ctx, pod, false)
		}
	}
	if err != nil && parent == "" {
		return "", err
	}
	st.rejected = rejected != nil
	if st.limitErr = err; rejected != nil {
		st.limitErr = rejected
	}
	return parent, nil
}

// setCgroup sets the limits of the cgroup of a pod. raise lowers none.
func (s *Syncer) setCgroup(ctx context.Context, pod *corev1.Pod, raise bool) (parent string, err error) {
	switch {
	case s.cfg.Cgroups == nil:
		return "", nil
	case raise:
		return s.cfg.Cgroups.Raise(ctx, pod)
	default:
		return s.cfg.Cgroups.Ensure(ctx, pod)
	}
}

// completeLimits lowers the limits of a pod whose containers have been resized, after it has announced
// that.
func (s *Syncer) completeLimits(ctx context.Context, pod *corev1.Pod, st *podState) error {
	if desired, changed := s.changedResources(pod, st); changed {
		if err := s.announce(ctx, pod, st, desired, desired); err != nil {
			return err
		}
	}
	_, err := s.setCgroup(ctx, pod, false)
	return err
}
