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
	stops := runtime.PlanTermination(pod, observed, e, time.Now())
	for len(stops) > 0 {
		n := 1
		for n < len(stops) && stops[n].Stage == stops[0].Stage {
			n++
		}
		if err := c.stopAll(ctx, pod, &observed, stops[:n], terminationReason(e)); err != nil {
			return err
		}
		stops = stops[n:]
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

// stopAll ends the containers of one stage, all at once.
func (c *Client) stopAll(ctx context.Context, pod *corev1.Pod, observed *runtime.Pod, stops []runtime.ContainerStop, reason string) error {
	var wg sync.WaitGroup
	errs := make([]error, len(stops))
	for i, s := range stops {
		wg.Go(func() { errs[i] = c.stop(ctx, pod, observed, s, reason, "Stopping container "+s.Container) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// stop runs a container's preStop hook and ends it, both before the deadline.
func (c *Client) stop(ctx context.Context, pod *corev1.Pod, observed *runtime.Pod, s runtime.ContainerStop, reason, message string) error {
	c.event(pod, s.Container, corev1.EventTypeNormal, "Killing", message)
	op := runtime.Operation{
		Type: runtime.OperationKillContainer, Pod: pod, ContainerID: s.ID, Container: s.Container,
		GracePeriod: s.RemainingGracePeriod(time.Now()), Reason: reason,
	}
	if spec := runtime.ContainerSpec(pod, s.Container); spec != nil {
		op.Image = spec.Image
	}
	return c.observe(ctx, &op, func(ctx context.Context) error { return c.killContainer(ctx, observed, s, op) })
}

func (c *Client) killContainer(ctx context.Context, observed *runtime.Pod, s runtime.ContainerStop, op runtime.Operation) error {
	startTime, pod := time.Now(), op.Pod
	if s.PreStop != nil && !s.Forced && !c.hooked.has(s.ID) {
		if err := c.preStop(ctx, observed, s, op); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("preStop hook of container %s: %w", s.Container, err)
			}
			// A hook that fails keeps no container from ending.
			c.event(pod, s.Container, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
			c.logPod(slog.LevelWarn, pod, "preStop hook failed", containerAttrs(s.Container, s.ID, since(startTime), logattr.Err(err))...)
		}
		c.hooked.add(s.ID)
	}
	if err := c.stopContainer(ctx, s.ID, s.RemainingGracePeriod(time.Now())); err != nil {
		return err
	}
	c.logPod(slog.LevelInfo, pod, "container killed", containerAttrs(s.Container, s.ID, slog.String("reason", op.Reason),
		slog.Duration("gracePeriod", op.GracePeriod), since(startTime))...)
	c.hooked.forget(s.ID)
	return nil
}

func (c *Client) preStop(ctx context.Context, observed *runtime.Pod, s runtime.ContainerStop, op runtime.Operation) error {
	within, cancel := context.WithTimeout(ctx, s.RemainingGracePeriod(time.Now()))
	defer cancel()
	op.Type = runtime.OperationPreStopHook
	return c.observe(within, &op, func(ctx context.Context) error {
		return c.runHook(ctx, c.hookTargetOf(op.Pod, observed, s), s.PreStop)
	})
}

func (c *Client) hookTargetOf(pod *corev1.Pod, observed *runtime.Pod, s runtime.ContainerStop) hookTarget {
	to := hookTarget{podnet.Container{Name: s.Container}, s.ID}
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
// once, the stages one after the other in the time that began with the first.
func (t *applyRun) killContainers(ctx context.Context, actions []runtime.Action) {
	known := t.c.facts.of(t.pod.UID)
	observed := runtime.Pod{UID: t.pod.UID, Containers: known.containers}
	for i := range known.sandboxes {
		observed.Sandboxes = append(observed.Sandboxes, known.sandboxes[i].Sandbox)
	}
	t.markChanged()
	began := time.Now()
	for len(actions) > 0 {
		n := 1
		for n < len(actions) && actions[n].Stage == actions[0].Stage {
			n++
		}
		var wg sync.WaitGroup
		for _, a := range actions[:n] {
			wg.Go(func() { t.killContainer(ctx, &observed, a, began) })
		}
		wg.Wait()
		rest := actions[n:]
		for _, a := range actions[:n] {
			if t.failed(a.Container) {
				t.unresized = fmt.Errorf("not resized, because container %s could not be stopped", a.Container)
			}
		}
		if t.isUnanswered() {
			for _, a := range rest { // they run, and are not started a second time
				t.fail(a.Container, killFailure(errors.New("not stopped, because the runtime has not answered the stop of another container")))
			}
			return
		}
		actions = rest
	}
}

func killFailure(err error) runtime.Failure {
	return runtime.Failure{Reason: "KillContainerError", Message: err.Error(), Err: err}
}

func (t *applyRun) killContainer(ctx context.Context, observed *runtime.Pod, a runtime.Action, began time.Time) {
	s := runtime.ContainerStop{Container: a.Container, ContainerType: a.ContainerType, ID: a.ID, Stage: a.Stage, Deadline: began.Add(a.GracePeriod), Forced: a.GracePeriod <= 0}
	if spec := t.spec(a.Container); spec != nil {
		if spec.Lifecycle != nil {
			s.PreStop = spec.Lifecycle.PreStop
		}
	} else if ct := byID(observed.Containers, a.ID); ct != nil {
		s.PreStop = ct.PreStop
	}
	if err := t.c.stop(ctx, t.pod, observed, s, a.Reason, cmp.Or(a.Message, "Stopping container "+a.Container)); err != nil {
		t.fail(a.Container, killFailure(err))
		if !isRefusal(err) {
			t.mu.Lock()
			t.unanswered = true
			t.mu.Unlock()
		}
	}
}

// graceOfPod is how long a pod's containers may take to end.
func graceOfPod(pod *corev1.Pod) time.Duration { return podspec.GracePeriod(pod) }
