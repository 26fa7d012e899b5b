package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// RemoveContainer removes one dead container. One that is not there is no error,
// one of another owner is runtime.ErrNotOwner.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	if err := c.mayChangeContainer(ctx, id); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	_, err := do(ctx, c, "RemoveContainer", id, c.cfg.Timeout, c.rs.RemoveContainer, &v1.RemoveContainerRequest{ContainerId: id})
	if err = ignoreMissing(err); err == nil {
		c.forgetRemoved(id)
	}
	return err
}

// removeSettled removes a container of which the start may have been cut off:
// containerd refuses to while it undoes the start.
func (c *Client) removeSettled(ctx context.Context, id string) error {
	var r retry
	for {
		err := c.RemoveContainer(ctx, id)
		if err == nil || !strings.Contains(err.Error(), "is in starting state") || !r.retry(ctx, false) {
			return err
		}
	}
}

// RemoveSandbox removes one stopped sandbox and the dead containers in it. One
// that is not there is no error, one of another owner is runtime.ErrNotOwner.
func (c *Client) RemoveSandbox(ctx context.Context, id string) error {
	if err := c.mayChangeSandbox(ctx, id); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	_, err := do(ctx, c, "RemovePodSandbox", id, 2*c.cfg.Timeout, c.rs.RemovePodSandbox, &v1.RemovePodSandboxRequest{PodSandboxId: id})
	if err = ignoreMissing(err); err == nil {
		c.forgetRemoved(id)
	}
	return err
}

// Remove removes every dead container and every sandbox of a pod as it was
// seen. It refuses to touch a pod of which something may still run.
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
		c.facts.forget(observed.UID)
		for _, ct := range observed.Containers {
			c.forgetRemoved(ct.ID)
		}
	}
	return err
}

// stopSandbox stops a sandbox and whatever still runs in it.
func (c *Client) stopSandbox(ctx context.Context, id string) error {
	if err := c.mayChangeSandbox(ctx, id); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	_, err := do(ctx, c, "StopPodSandbox", id, 2*c.cfg.Timeout, c.rs.StopPodSandbox, &v1.StopPodSandboxRequest{PodSandboxId: id})
	return ignoreMissing(err)
}
