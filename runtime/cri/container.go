package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/images"
)

// startContainer brings one container from its image to running.
func (t *applyRun) startContainer(ctx context.Context, a runtime.Action) error {
	spec := t.spec(a.Container)
	if spec == nil {
		return fmt.Errorf("container %q is not in the pod's spec: %w", a.Container, runtime.ErrInvalid)
	}
	image, err := t.image(ctx, spec.Name, neededImage{spec.Image, spec.ImagePullPolicy})
	if err != nil {
		return err
	}
	config, err := t.containerConfig(ctx, spec, a, image)
	if err != nil {
		if _, isPull := errors.AsType[*images.PullError](err); !isPull { // of an image volume, which has an event of its own
			t.emitFailure(ctx, spec.Name, "Failed", err)
		}
		return withReason("CreateContainerConfigError", err)
	}
	if err := t.acquireSlot(ctx); err != nil {
		return err
	}
	t.markChanged()
	startTime, made := time.Now(), madeContainer{}
	op := runtime.Operation{
		Type: runtime.OperationCreateContainer, Pod: t.pod, SandboxID: t.sandbox.ID, Container: spec.Name, Image: spec.Image,
	}
	if err := t.c.observe(ctx, &op, func(ctx context.Context) (err error) {
		made, err = t.c.createContainer(ctx, t.sandbox.ID, config, t.sandboxConfig)
		op.ContainerID = made.id
		return err
	}); err != nil {
		t.emitFailure(ctx, spec.Name, "Failed", err)
		return &reasonError{"CreateContainerError", err}
	}
	id := op.ContainerID
	t.event(spec.Name, corev1.EventTypeNormal, "Created", "Container created: "+spec.Name)
	t.log("container created", containerAttrs(spec.Name, id, sandboxID(t.sandbox.ID),
		slog.String("image", spec.Image), slog.Uint64("attempt", uint64(a.Attempt)), since(startTime))...)
	if made.adopted {
		t.started = nil // one that is not expected
	}
	if t.started != nil {
		t.started.addContainer(id, t.sandbox.ID, config, t.c.cfg.Node.BootID)
	}
	if made.running {
		t.log("container adopted", containerAttrs(spec.Name, id, sandboxID(t.sandbox.ID))...)
		t.linkLog(spec.Name, id, config.GetLogPath())
		return nil
	}
	if t.m.PreStart != nil {
		if err := t.m.PreStart(ctx, spec.Name); err != nil {
			t.emitFailure(ctx, spec.Name, "Failed", err)
			return &reasonError{"PreStartContainerError", errors.Join(err, t.c.RemoveContainer(ctx, id))}
		}
	}
	startTime, op.Type = time.Now(), runtime.OperationStartContainer
	if err := t.c.observe(ctx, &op, func(ctx context.Context) error {
		return t.c.startContainer(ctx, id)
	}); err != nil {
		t.emitFailure(ctx, spec.Name, "Failed", err)
		return &reasonError{"RunContainerError", errors.Join(err, t.stopWithoutHook(ctx, spec, id, err))}
	}
	t.event(spec.Name, corev1.EventTypeNormal, "Started", "Container started: "+spec.Name)
	t.linkLog(spec.Name, id, config.GetLogPath())
	t.log("container started", containerAttrs(spec.Name, id, sandboxID(t.sandbox.ID), since(startTime))...)
	return t.postStart(ctx, spec, id)
}

// startCancelDelay is how long a StartContainer call may go on after its context has been
// cancelled.
const startCancelDelay = 10 * time.Second

// startContainer starts a container. Cancelling ctx prevents the call, but interrupts one
// that is under way only after startCancelDelay: containerd 2.4 can be left with a process
// of a container that it takes for ended, and that it then neither stops nor removes.
func (c *Client) startContainer(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		if sleep.For(late, startCancelDelay) == nil {
			cancel()
		}
	})
	defer stop()
	_, err := do(late, c, "StartContainer", id, c.cfg.Timeout, c.rs.StartContainer, &v1.StartContainerRequest{ContainerId: id})
	return err
}

// createContainer makes a container and returns its id. If the name turns out
// to be taken by an earlier call whose response was lost, that container is
// adopted if it was made from the same spec and has not ended, and removed
// otherwise.
func (c *Client) createContainer(ctx context.Context, sandboxID string, config *v1.ContainerConfig, sandbox *v1.PodSandboxConfig,
) (madeContainer, error) {
	var r retry
	for {
		resp, err := do(ctx, c, "CreateContainer", config.GetMetadata().GetName(), c.cfg.Timeout, c.rs.CreateContainer,
			&v1.CreateContainerRequest{PodSandboxId: sandboxID, Config: config, SandboxConfig: sandbox})
		if err == nil && resp.GetContainerId() == "" {
			return madeContainer{}, fmt.Errorf("CreateContainer %s: %w", config.GetMetadata().GetName(), errEmpty)
		}
		if err == nil {
			c.owned.add(resp.GetContainerId())
		}
		if err == nil || !nameTaken(err) {
			return madeContainer{id: resp.GetContainerId()}, err
		}
		owner, failed := c.adoptContainer(ctx, sandboxID, config)
		if owner.id != "" {
			return madeContainer{owner.id, true, owner.running}, nil
		}
		if failed != nil || !r.retry(ctx, owner.found) {
			return madeContainer{}, errors.Join(err, failed)
		}
	}
}

// madeContainer is the result of createContainer. One that was adopted may be running.
type madeContainer struct {
	id               string
	adopted, running bool
}

// nameOwner is the container that holds a name. Without an id it was of no use and
// has been removed.
type nameOwner struct {
	found, running bool
	id             string
}

func (c *Client) adoptContainer(ctx context.Context, sandboxID string, config *v1.ContainerConfig) (nameOwner, error) {
	want := config.GetLabels()
	all, err := c.listContainers(ctx, map[string]string{
		runtime.LabelPodUID: want[runtime.LabelPodUID], runtime.LabelContainerName: want[runtime.LabelContainerName],
	})
	if err != nil {
		return nameOwner{}, err
	}
	for _, ct := range all {
		if ct.GetMetadata().GetAttempt() != config.GetMetadata().GetAttempt() {
			continue
		}
		if !c.claims().container(ct.GetLabels(), func() bool { return ct.GetPodSandboxId() == sandboxID }) {
			return nameOwner{found: true}, notOwner("the name is taken by container", ct.GetId(), ct.GetLabels())
		}
		same := ct.GetPodSandboxId() == sandboxID &&
			ct.GetAnnotations()[runtime.AnnotationHash] == config.GetAnnotations()[runtime.AnnotationHash]
		state := ct.GetState()
		switch {
		case same && (state == v1.ContainerState_CONTAINER_CREATED || state == v1.ContainerState_CONTAINER_RUNNING):
			return nameOwner{true, state == v1.ContainerState_CONTAINER_RUNNING, ct.GetId()}, nil
		case state == v1.ContainerState_CONTAINER_RUNNING:
			return nameOwner{found: true}, fmt.Errorf("container %s of another spec runs under this name: %w", ct.GetId(), runtime.ErrAlreadyExists)
		}
		return nameOwner{found: true}, c.RemoveContainer(ctx, ct.GetId())
	}
	return nameOwner{}, nil
}

// stopContainer ends a container: the runtime sends its stop signal, and kills
// it when grace is over.
func (c *Client) stopContainer(ctx context.Context, id string, grace time.Duration) error {
	if err := c.mayChangeContainer(ctx, id); err != nil {
		return fmt.Errorf("stop container: %w", err)
	}
	timeout := min(grace, math.MaxInt64-c.cfg.Timeout) + c.cfg.Timeout // a grace period may be endless
	_, err := do(ctx, c, "StopContainer", id, timeout, c.rs.StopContainer,
		&v1.StopContainerRequest{ContainerId: id, Timeout: roundUpSeconds(grace)})
	return ignoreMissing(err)
}

// emitFailure emits the failure of a sandbox or container that could not be created or
// started, unless the agent itself cancelled the call.
func (t *applyRun) emitFailure(ctx context.Context, container, reason string, err error) {
	if ctx.Err() == nil {
		t.event(container, corev1.EventTypeWarning, reason, "Error: "+err.Error())
	}
}

// event emits an event about a container of the pod, or about the pod if container is "".
func (t *applyRun) event(container, eventType, reason, message string) {
	t.c.event(t.pod, container, eventType, reason, message)
}

// log logs an event in the lifecycle of the pod.
func (t *applyRun) log(message string, attrs ...slog.Attr) {
	t.c.logPod(slog.LevelInfo, t.pod, message, attrs...)
}

func (c *Client) event(pod *corev1.Pod, container, eventType, reason, message string) {
	if c.cfg.Recorder != nil && pod != nil {
		c.cfg.Recorder.Record(podspec.NewContainerEvent(pod, container, eventType, reason, message, time.Now()))
	}
}
