package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/podnet"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// hookOutput bounds what is kept of a hook command's output, for its error.
const hookOutput = 1 << 10

// hookTarget is the container that a lifecycle hook is for.
type hookTarget struct {
	podnet.Container
	id  string
	pod *corev1.Pod
}

// hookError is the error of a lifecycle hook. Its text can have the command, its output or
// a URL, so that it is for the pod's owner: for the status, but not for events, logs and
// traces.
type hookError struct {
	error
	exitCode int // of a command; 0: it did not end by itself
}

func (e *hookError) Unwrap() error { return e.error }

// Redacted returns the text of the error for others.
func (e *hookError) Redacted() string {
	if e.exitCode != 0 {
		return fmt.Sprintf("lifecycle hook failed with exit code %d", e.exitCode)
	}
	return "lifecycle hook failed"
}

// runHook runs a lifecycle hook to its end, or until ctx ends: at the HookTimeout of a postStart
// hook, and with the grace period of a preStop hook.
func (c *Client) runHook(ctx context.Context, to hookTarget, h *corev1.LifecycleHandler) error {
	code, err := c.runHandler(ctx, to, h)
	if err != nil {
		return &hookError{err, code}
	}
	return nil
}

// runHandler runs a hook, and returns the exit code of a command.
func (c *Client) runHandler(ctx context.Context, to hookTarget, h *corev1.LifecycleHandler) (int, error) {
	switch {
	case h.Exec != nil:
		return c.execHook(ctx, to.id, h.Exec.Command)
	case h.HTTPGet != nil:
		return 0, c.httpHook(ctx, to, h.HTTPGet)
	case h.Sleep != nil:
		return 0, sleep.For(ctx, podspec.Seconds(h.Sleep.Seconds))
	}
	// tcpSocket is valid, and was never supported.
	return 0, fmt.Errorf("the hook names no exec, httpGet or sleep: %w", runtime.ErrInvalid)
}

func (c *Client) execHook(ctx context.Context, id string, command []string) (int, error) {
	var timeout time.Duration
	if until, ok := ctx.Deadline(); ok {
		timeout = max(time.Until(until), time.Second)
	}
	out, code, err := c.Exec(ctx, id, command, timeout, hookOutput)
	switch {
	case err != nil:
		return 0, err
	case code != 0:
		return code, fmt.Errorf("command %q ended with %d: %s", command, code, strings.TrimSpace(string(out)))
	}
	return 0, nil
}

// httpHook sends one request. Any answer counts as done, whatever its code, as
// manifests have come to rely on. So does one without TLS to a request with it: as with a
// kubelet, the request is sent again without, and without what authorizes it.
func (c *Client) httpHook(ctx context.Context, to hookTarget, h *corev1.HTTPGetAction) error {
	req, err := to.NewRequest(ctx, h, "kube-lifecycle/1.37")
	if errors.Is(err, podnet.ErrNoIP) {
		return fmt.Errorf("httpGet: %w: %w", err, runtime.ErrNotReady)
	}
	if err != nil {
		return fmt.Errorf("httpGet: %w: %w", err, runtime.ErrInvalid)
	}
	err = c.sendHook(req)
	if errors.Is(err, http.ErrSchemeMismatch) {
		plain := req.Clone(req.Context())
		plain.URL.Scheme = "http"
		plain.Header.Del("Authorization")
		if c.sendHook(plain) == nil {
			c.event(to.pod, to.Name, corev1.EventTypeWarning, "LifecycleHTTPFallback",
				"HTTPS hook: "+req.URL.Host+" answers without TLS, so it was sent without")
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("httpGet: %w", err)
	}
	return nil
}

func (c *Client) sendHook(req *http.Request) error {
	resp, err := c.hookClient().Do(req)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 10<<10)
	return resp.Body.Close()
}

func (c *Client) hookClient() *http.Client {
	return &http.Client{
		Transport: podnet.NewTransport(c.cfg.DialContext),
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Hostname() != via[0].URL.Hostname() || len(via) >= 10 {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

// maxStopAttempts is how often a container is stopped whose postStart hook failed, while
// that fails.
const maxStopAttempts = 5

func hasPostStart(spec *corev1.Container) bool {
	return spec.Lifecycle != nil && spec.Lifecycle.PostStart != nil
}

// postStart runs a container's postStart hook. A hook that fails costs the
// container its life. RT-10
func (t *applyRun) postStart(ctx context.Context, spec *corev1.Container, id string) error {
	if !hasPostStart(spec) {
		return nil
	}
	t.releaseSlot(false) // a hook may take its time
	within, cancel := context.WithTimeout(ctx, t.c.cfg.HookTimeout)
	defer cancel()
	op := runtime.Operation{
		Type: runtime.OperationPostStartHook, Pod: t.pod, SandboxID: t.sandbox.ID, ContainerID: id, Container: spec.Name, Image: spec.Image,
	}
	err := t.c.observe(within, &op, func(ctx context.Context) error {
		return t.c.runHook(ctx, hookTarget{
			podnet.Container{Name: spec.Name, PodIP: cmp.Or(t.podIPs()...), Ports: spec.Ports}, id, t.pod,
		}, spec.Lifecycle.PostStart)
	})
	if err == nil || ctx.Err() != nil {
		return err // the pod is ending: who ends it stops this container too
	}
	err = fmt.Errorf("postStart hook: %w", err)
	t.event(spec.Name, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	t.event(spec.Name, corev1.EventTypeNormal, "Killing", "FailedPostStartHook: container "+spec.Name+" is killed")
	return &reasonError{"PostStartHookError", errors.Join(err, t.stopUnhooked(ctx, spec, id, spec.Lifecycle.PreStop))}
}

// stopWithoutHook stops a container with a postStart hook after a StartContainer whose response was lost: it can be
// running, and its hook was not run. RT-10
func (t *applyRun) stopWithoutHook(ctx context.Context, spec *corev1.Container, id string, started error) error {
	lost := errors.Is(started, runtime.ErrDeadlineExceeded) || errors.Is(started, runtime.ErrUnavailable)
	if !lost || !hasPostStart(spec) || ctx.Err() != nil {
		return nil //nolint:nilerr // started is the caller's error, which it returns itself
	}
	return t.stopUnhooked(ctx, spec, id, nil)
}

// stopUnhooked stops a container whose postStart hook did not succeed; its preStop hook is run if there is one, as by a
// kubelet. Nothing records that for the next sync, which would keep a running container, so a failed stop is tried again.
func (t *applyRun) stopUnhooked(ctx context.Context, spec *corev1.Container, id string, preStop *corev1.LifecycleHandler) error {
	grace := max(graceOfPod(t.pod), time.Second)
	op := runtime.Operation{
		Type: runtime.OperationKillContainer, Pod: t.pod, SandboxID: t.sandbox.ID, ContainerID: id, Container: spec.Name, Image: spec.Image,
		GracePeriod: grace, Reason: "FailedPostStartHook",
	}
	stop := runtime.ContainerStop{Container: spec.Name, ID: id, Deadline: time.Now().Add(grace), PreStop: preStop}
	observed := runtime.Pod{Sandboxes: []runtime.Sandbox{t.sandbox}}
	return t.c.observe(ctx, &op, func(ctx context.Context) error {
		err := t.c.killContainer(ctx, &observed, stop, &stage{}, op)
		for tries := range maxStopAttempts - 1 {
			if err == nil || sleep.For(ctx, time.Second<<tries) != nil {
				break
			}
			err = t.c.killContainer(ctx, &observed, stop, &stage{}, op)
		}
		return err
	})
}
