package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/podnet"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// Kill stops every observed container of the pod, in the stages of
// runtime.PlanTermination, then its sandboxes. It blocks until they have stopped. pod may
// be a stub that has only a name and UID, for a pod that is known from the runtime only.
// Sandboxes that have ended by themselves are stopped too, so that the runtime gives back
// their addresses; if it cannot, that is no error.
//
// Kill may be called again with a shorter grace period after the context of an earlier
// call was cancelled. A preStop hook that has completed does not run again.
func (c *Client) Kill(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, e runtime.Termination) error {
	c.facts.beginKill(pod.UID, observed)
	defer c.facts.endKill(pod.UID)
	stops := runtime.PlanTermination(pod, observed, e, time.Now())
	if err := c.stopAll(ctx, pod, &observed, stops, terminationReason(e)); err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, len(observed.Sandboxes))
	for i, s := range observed.Sandboxes {
		switch {
		case s.State == runtime.SandboxReady:
			wg.Go(func() { errs[i] = c.killSandbox(ctx, pod, s.ID, terminationReason(e)) })
		case !c.stopped.has(s.ID):
			wg.Go(func() { errs[i] = c.killEndedSandbox(ctx, pod, s.ID, terminationReason(e)) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// killEndedSandbox stops a sandbox in which nothing runs. That the runtime cannot is only
// logged: it does not keep the pod from ending.
func (c *Client) killEndedSandbox(ctx context.Context, pod *corev1.Pod, id, reason string) error {
	err := c.killSandbox(ctx, pod, id, reason)
	if !isRefusal(err) {
		return err
	}
	c.logPod(slog.LevelWarn, pod, "ended sandbox not stopped", sandboxID(id), logattr.Err(err))
	return nil
}

// killSandbox stops a sandbox of the pod and whatever still runs in it.
func (c *Client) killSandbox(ctx context.Context, pod *corev1.Pod, id, reason string) error {
	op := runtime.Operation{Type: runtime.OperationStopSandbox, Pod: pod, SandboxID: id, Reason: reason}
	if err := c.observe(ctx, &op, func(ctx context.Context) error { return c.stopSandbox(ctx, id) }); err != nil {
		return err
	}
	c.logPod(slog.LevelInfo, pod, "sandbox stopped", sandboxID(id), slog.String("reason", reason))
	return nil
}

// stopAll ends containers, stage by stage. Their hooks begin at once.
func (c *Client) stopAll(ctx context.Context, pod *corev1.Pod, observed *runtime.Pod, stops []runtime.ContainerStop, reason string) error {
	var wg sync.WaitGroup
	errs, stages := make([]error, len(stops)), stagesOf(stops)
	for i, s := range stops {
		wg.Go(func() {
			err := c.stop(ctx, pod, observed, s, stages[i], reason, "Stopping container "+s.Container)
			stages[i].end(err == nil)
			if !errors.Is(err, errNotStopped) { // which another error explains
				errs[i] = err
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// stop runs a container's preStop hook and, once its stage has begun, ends it, both before the deadline.
func (c *Client) stop(ctx context.Context, pod *corev1.Pod, observed *runtime.Pod, s runtime.ContainerStop, own *stage, reason, message string) error {
	c.event(pod, s.Container, corev1.EventTypeNormal, "Killing", message)
	op := runtime.Operation{
		Type: runtime.OperationKillContainer, Pod: pod, ContainerID: s.ID, Container: s.Container,
		GracePeriod: s.RemainingGracePeriod(time.Now()), Reason: reason,
	}
	if spec := runtime.ContainerSpec(pod, s.Container); spec != nil {
		op.Image = spec.Image
	}
	return c.observe(ctx, &op, func(ctx context.Context) error { return c.killContainer(ctx, observed, s, own, op) })
}

func (c *Client) killContainer(ctx context.Context, observed *runtime.Pod, s runtime.ContainerStop, own *stage, op runtime.Operation) error {
	startTime, pod := time.Now(), op.Pod
	if s.PreStop != nil && !s.Forced && !c.hooked.has(s.ID) {
		end, err := c.preStop(ctx, observed, s, op)
		defer end()
		if err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("preStop hook of container %s: %w", s.Container, err)
			}
			// A hook that fails keeps no container from ending.
			c.event(pod, s.Container, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
			c.logPod(slog.LevelWarn, pod, "preStop hook failed", containerAttrs(s.Container, s.ID, since(startTime), logattr.Err(err))...)
		}
		c.hooked.add(s.ID)
	}
	if err := own.wait(ctx, s.Deadline); err != nil {
		return fmt.Errorf("container %s: %w", s.Container, err)
	}
	if err := c.stopContainer(ctx, s.ID, s.StopPeriod(time.Now(), op.GracePeriod)); err != nil {
		return err
	}
	c.logPod(slog.LevelInfo, pod, "container killed", containerAttrs(s.Container, s.ID, slog.String("reason", op.Reason),
		slog.Duration("gracePeriod", op.GracePeriod), since(startTime))...)
	c.hooked.forget(s.ID)
	return nil
}

// errHookLate is the error of a preStop hook that takes longer than the grace period.
var errHookLate = errors.New("the grace period is over")

// preStop runs a preStop hook to its end, or to that of the grace period. As with a kubelet, a hook that is late
// goes on while the container is stopped; end waits for it then.
func (c *Client) preStop(ctx context.Context, observed *runtime.Pod, s runtime.ContainerStop, op runtime.Operation) (end func(), err error) {
	within, cancel := context.WithDeadline(ctx, s.Deadline.Add(runtime.MinStopPeriod))
	op.Type = runtime.OperationPreStopHook
	var failed error // once ended is closed
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		failed = c.observe(within, &op, func(ctx context.Context) error {
			return c.runHook(ctx, c.hookTargetOf(op.Pod, observed, s), s.PreStop)
		})
	}()
	late := time.NewTimer(time.Until(s.Deadline))
	defer late.Stop()
	select {
	case <-ended:
		return cancel, failed
	case <-late.C:
		return func() { cancel(); <-ended }, errHookLate
	}
}

func (c *Client) hookTargetOf(pod *corev1.Pod, observed *runtime.Pod, s runtime.ContainerStop) hookTarget {
	to := hookTarget{podnet.Container{Name: s.Container}, s.ID, pod}
	for i := range observed.Sandboxes {
		if sb := &observed.Sandboxes[i]; sb.State == runtime.SandboxReady && len(sb.IPs) > 0 {
			to.PodIP = sb.IPs[0]
			break
		}
	}
	if to.PodIP == "" && (pod.Status.PodIP != "" || podspec.IsHostNetwork(pod)) {
		to.PodIP = cmp.Or(pod.Status.PodIP, pod.Status.HostIP, "127.0.0.1")
	}
	if spec := runtime.ContainerSpec(pod, s.Container); spec != nil {
		to.Ports = spec.Ports
	} else if ct := byID(observed.Containers, s.ID); ct != nil {
		to.Ports = translate.Ports(ct.Annotations)
	}
	return to
}

func byID(all []runtime.Container, id string) *runtime.Container {
	i := slices.IndexFunc(all, func(c runtime.Container) bool { return c.ID == id })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// killContainers carries out actions that end containers: those of one stage at
// once, the stages one after the other in the time that began with the first. After a stop that
// the runtime has not answered, later ones run on, and are not started a second time.
func (t *applyRun) killContainers(ctx context.Context, actions []runtime.Action) {
	known := t.c.facts.of(t.pod.UID)
	observed := runtime.Pod{UID: t.pod.UID, Containers: known.containers}
	for i := range known.sandboxes {
		observed.Sandboxes = append(observed.Sandboxes, known.sandboxes[i].Sandbox)
	}
	t.markChanged()
	began, stops := time.Now(), make([]runtime.ContainerStop, len(actions))
	for i, a := range actions {
		stops[i] = t.containerStop(&observed, a, began)
	}
	var wg sync.WaitGroup
	stages := stagesOf(stops)
	for i, a := range actions {
		wg.Go(func() { stages[i].end(t.killContainer(ctx, &observed, a, stops[i], stages[i])) })
	}
	wg.Wait()
	t.keepOthers(actions)
}

// keepOthers has the other containers stay as they are where that depends on containers of these actions
// that could not be stopped.
func (t *applyRun) keepOthers(actions []runtime.Action) {
	for _, a := range actions {
		if !t.failed(a.Container) {
			continue
		}
		if t.unresized == nil {
			t.unresized = fmt.Errorf("not resized, because container %s could not be stopped", a.Container)
		}
		if a.Reason == runtime.ReasonRestartAll && t.unrestarted == nil {
			t.unrestarted = fmt.Errorf("not started, because container %s, which is restarted with all others, could not be stopped", a.Container)
		}
	}
}

func killFailure(err error) runtime.Failure {
	return runtime.Failure{Reason: "KillContainerError", Message: err.Error(), Err: err}
}

// containerStop is how the container of an action is stopped.
func (t *applyRun) containerStop(observed *runtime.Pod, a runtime.Action, began time.Time) runtime.ContainerStop {
	s := runtime.ContainerStop{Container: a.Container, ContainerType: a.ContainerType, ID: a.ID, Stage: a.Stage, Deadline: began.Add(a.GracePeriod), Forced: a.GracePeriod <= 0}
	if spec := t.spec(a.Container); spec != nil {
		if spec.Lifecycle != nil {
			s.PreStop = spec.Lifecycle.PreStop
		}
	} else if ct := byID(observed.Containers, a.ID); ct != nil {
		s.PreStop = ct.PreStop
	}
	return s
}

// killContainer reports whether the runtime has answered.
func (t *applyRun) killContainer(ctx context.Context, observed *runtime.Pod, a runtime.Action, s runtime.ContainerStop, own *stage) (answered bool) {
	err := t.c.stop(ctx, t.pod, observed, s, own, a.Reason, cmp.Or(a.Message, "Stopping container "+a.Container))
	if err == nil {
		return true
	}
	t.fail(a.Container, killFailure(err))
	if isRefusal(err) {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unanswered = true
	return false
}

// graceOfPod is how long a pod's containers may take to end.
func graceOfPod(pod *corev1.Pod) time.Duration { return podspec.GracePeriod(pod) }
