package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

// RemoveContainer removes one dead container. One that is not there is no error,
// one of another owner is runtime.ErrNotOwner.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	if err := c.mayChangeContainer(ctx, id); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	err := removeSettled(ctx, func() error {
		_, err := do(ctx, c, "RemoveContainer", id, c.cfg.Timeout, c.rs.RemoveContainer, &v1.RemoveContainerRequest{ContainerId: id})
		return err
	})
	if err = ignoreMissing(err); err == nil {
		c.forgetRemoved(id)
	}
	return err
}

// removeSettled removes a container, or a sandbox with its containers. containerd refuses to while it undoes the
// start of a container that was cut off, and while it removes one for another call: garbage collection may remove
// a container when its pod ends.
func removeSettled(ctx context.Context, remove func() error) error {
	var r retry
	for {
		err := remove()
		if err == nil || !isUnsettled(err) || !r.retry(ctx, false) {
			return err
		}
	}
}

// isUnsettled reports whether containerd refuses a removal for a moment. It tells so in words only.
func isUnsettled(err error) bool {
	return strings.Contains(err.Error(), "is in starting state") || strings.Contains(err.Error(), "is already in removing state")
}

// RemoveSandbox removes one sandbox that has ended, and the dead containers in it. It
// stops the sandbox first if this Client has not: only then does the runtime give back
// what the sandbox has used, such as its addresses. A sandbox that the runtime cannot stop
// is removed nevertheless. One that is not there is no error, one of another owner is
// runtime.ErrNotOwner.
func (c *Client) RemoveSandbox(ctx context.Context, id string) error {
	if err := c.mayChangeSandbox(ctx, id); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	var unstopped error
	if c.owned.has(id) && !c.stopped.has(id) { // else it is not there, or stopped
		if unstopped = c.stopOwnedSandbox(ctx, id); unstopped != nil && !isRefusal(unstopped) {
			return unstopped
		}
	}
	err := removeSettled(ctx, func() error {
		_, err := do(ctx, c, "RemovePodSandbox", id, 2*c.cfg.Timeout, c.rs.RemovePodSandbox, &v1.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
	if err = ignoreMissing(err); err == nil {
		c.forgetRemoved(id)
		c.stopped.forget(id)
		if unstopped != nil {
			c.cfg.Logger.Warn("sandbox removed without being stopped", sandboxID(id), logattr.Err(unstopped))
		}
		return nil
	}
	if unstopped != nil {
		err = fmt.Errorf("%w; it could not be stopped: %s", err, unstopped.Error())
	}
	return err
}

// Remove removes every dead container and every sandbox of a pod as it was
// seen. It refuses to touch a pod of which something may still run. If nothing runs and
// the runtime answers that it cannot remove something, the error wraps
// runtime.ErrNotRemoved.
func (c *Client) Remove(ctx context.Context, observed runtime.Pod) error {
	if observed.CouldHaveRunningContainers() {
		return fmt.Errorf("remove pod %s: a container may be running: %w", observed.UID, runtime.ErrNotReady)
	}
	var errs []error
	inSandbox := make(map[string]bool, len(observed.Sandboxes))
	for _, s := range observed.Sandboxes {
		inSandbox[s.ID] = true
	}
	// A sandbox takes its containers with it. Only those that lost their
	// sandbox need a call of their own.
	for _, ct := range observed.Containers {
		if !inSandbox[ct.SandboxID] {
			errs = append(errs, c.RemoveContainer(ctx, ct.ID))
		}
	}
	for _, s := range observed.Sandboxes {
		errs = append(errs, c.RemoveSandbox(ctx, s.ID))
	}
	err := errors.Join(errs...)
	if err == nil {
		c.facts.setRemoved(observed)
		for _, ct := range observed.Containers {
			c.forgetRemoved(ct.ID)
		}
	} else if mayBeLeft(observed, errs) {
		err = fmt.Errorf("%w: %w", runtime.ErrNotRemoved, err)
	}
	return err
}

// mayBeLeft reports whether nothing of the pod runs, and all that keeps it from being removed
// is what the runtime says.
func mayBeLeft(observed runtime.Pod, errs []error) bool {
	return !observed.HasReadySandbox() && !slices.ContainsFunc(errs, func(err error) bool { return err != nil && !isRefusal(err) })
}

// isRefusal reports whether err is the runtime's answer that it cannot do what it was asked
// to. That may stay so: after a loss of power, containerd may lack what it needs to release
// the network of a pod. A runtime that is away, late or overloaded has not refused.
func isRefusal(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.kind == nil && e.cause == nil && e.status.Code() != codes.ResourceExhausted
}

// stopSandbox stops a sandbox and whatever still runs in it.
func (c *Client) stopSandbox(ctx context.Context, id string) error {
	if err := c.mayChangeSandbox(ctx, id); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	return c.stopOwnedSandbox(ctx, id)
}

// stopOwnedSandbox is stopSandbox for one that is known to be the Client's.
func (c *Client) stopOwnedSandbox(ctx context.Context, id string) error {
	_, err := do(ctx, c, "StopPodSandbox", id, 2*c.cfg.Timeout, c.rs.StopPodSandbox, &v1.StopPodSandboxRequest{PodSandboxId: id})
	if err = ignoreMissing(err); err == nil {
		c.stopped.add(id)
	}
	return err
}
