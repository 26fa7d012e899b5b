package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// createSandbox makes the pod's sandbox and learns its addresses.
func (t *applyRun) createSandbox(ctx context.Context, a runtime.Action) error {
	config, err := t.translator().Sandbox(a.Attempt)
	if err != nil {
		return &reasonError{"ConfigPodSandboxError", err}
	}
	if err := t.acquireSlot(ctx); err != nil {
		return err
	}
	t.markChanged()
	op := runtime.Operation{Type: runtime.OperationCreateSandbox, Pod: t.pod}
	return t.c.observe(ctx, &op, func(ctx context.Context) error {
		id, err := t.createSandboxFrom(ctx, a, config)
		op.SandboxID = id
		return err
	})
}

// createSandboxFrom returns the id of the sandbox also if it is of no use.
func (t *applyRun) createSandboxFrom(ctx context.Context, a runtime.Action, config *v1.PodSandboxConfig) (string, error) {
	startTime, handler := time.Now(), translate.RuntimeHandler(t.pod)
	id, adopted, err := t.c.runSandbox(ctx, config, handler)
	if err != nil {
		return "", err
	}
	t.log("sandbox created", sandboxID(id), slog.Uint64("attempt", uint64(a.Attempt)), since(startTime))
	t.sandboxConfig, t.made = config, true
	t.sandbox = runtime.Sandbox{
		ID: id, Attempt: a.Attempt, State: runtime.SandboxReady, Created: time.Now(), Handler: handler,
		Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		Source: config.GetAnnotations()[podspec.AnnotationSource], GracePeriod: translate.GracePeriod(config.GetAnnotations()),
	}
	st := t.c.facts.of(t.pod.UID).readyStatus(id)
	if st == nil {
		if st, err = t.c.sandboxStatus(ctx, id); err != nil {
			return id, err
		}
	}
	t.sandbox = translate.AddSandboxStatus(t.sandbox, st)
	if t.sandbox.State != runtime.SandboxReady {
		return id, fmt.Errorf("sandbox %s ended right after its start: %w", id, runtime.ErrNotReady)
	}
	t.c.facts.addSandbox(t.pod.UID, t.sandbox, time.Now())
	if adopted {
		t.started = nil // there may be containers in it
	}
	if t.started != nil {
		t.started.Sandboxes = []runtime.Sandbox{t.sandbox}
	}
	return id, nil
}

// runSandbox makes a sandbox. If its name turns out to be taken by an earlier call
// whose response was lost, that sandbox is adopted, or removed if it is of no use,
// and the name tried again.
func (c *Client) runSandbox(ctx context.Context, config *v1.PodSandboxConfig, handler string) (id string, adopted bool, err error) {
	var r retry
	for {
		resp, err := do(ctx, c, "RunPodSandbox", "", 2*c.cfg.Timeout, c.rs.RunPodSandbox,
			&v1.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		if err == nil && resp.GetPodSandboxId() == "" {
			return "", false, fmt.Errorf("RunPodSandbox: %w", errEmpty)
		}
		if err == nil {
			c.owned.add(resp.GetPodSandboxId())
		}
		if err == nil || !nameTaken(err) {
			return resp.GetPodSandboxId(), false, err
		}
		id, found, failed := c.adoptSandbox(ctx, config)
		if id != "" {
			return id, true, nil
		}
		if failed != nil || !r.retry(ctx, found) {
			return "", false, errors.Join(err, failed)
		}
	}
}

// adoptSandbox looks for the sandbox that holds config's name. It returns its
// id if it is ready; if not, it is removed and the name is free. One of another
// owner is left alone, which is an error: a UID is one pod of the node.
func (c *Client) adoptSandbox(ctx context.Context, config *v1.PodSandboxConfig) (id string, found bool, err error) {
	want := config.GetMetadata()
	all, err := c.listSandboxes(ctx, map[string]string{runtime.LabelPodUID: want.GetUid()})
	if err != nil {
		return "", false, err
	}
	for _, s := range all {
		if s.GetMetadata().GetAttempt() != want.GetAttempt() {
			continue
		}
		if !c.claims().sandbox(s.GetLabels(), s.GetAnnotations()) {
			return "", true, notOwner("the name is taken by sandbox", s.GetId(), s.GetLabels())
		}
		if s.GetState() == v1.PodSandboxState_SANDBOX_READY {
			return s.GetId(), true, nil
		}
		if err := c.stopSandbox(ctx, s.GetId()); err != nil {
			return "", true, err
		}
		return "", true, c.RemoveSandbox(ctx, s.GetId())
	}
	return "", false, nil
}

// needSandbox makes sure that the Apply knows the sandbox to start containers
// in: the newest ready one.
func (t *applyRun) needSandbox(ctx context.Context) error {
	if t.sandboxConfig != nil {
		return nil
	}
	known := t.c.facts.of(t.pod.UID)
	if len(known.sandboxes) > 0 && known.sandboxes[0].State == runtime.SandboxReady {
		t.sandbox = known.sandboxes[0].Sandbox
	} else {
		observed, err := t.c.Pod(ctx, t.pod.UID)
		if err != nil {
			return err
		}
		s := observed.ReadySandbox()
		if s == nil {
			return fmt.Errorf("no ready sandbox: %w", runtime.ErrNotReady)
		}
		t.sandbox = *s
	}
	config, err := t.translator().Sandbox(t.sandbox.Attempt)
	if err != nil {
		return &reasonError{"ConfigPodSandboxError", err}
	}
	t.sandboxConfig = config
	return nil
}

// podIPs are the pod's addresses, the node's for a pod on the host network.
func (t *applyRun) podIPs() []string {
	if podspec.IsHostNetwork(t.pod) {
		return t.m.HostIPs
	}
	return runtime.PodIPs(t.sandbox.IPs, t.m.HostIPs)
}
