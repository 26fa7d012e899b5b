package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/images"
)

// Apply executes plan for pod, action by action. Containers of one stage are killed in
// parallel, and images are fetched from the beginning on; containers start in order. The
// failure of a container does not prevent the start of the next one; the failure of a
// sandbox ends Apply. Apply blocks until everything that it started has ended, and
// returns early if ctx is done.
func (c *Client) Apply(ctx context.Context, pod *corev1.Pod, plan []runtime.Action, m runtime.RunOptions) runtime.ApplyResult {
	ctx, cancel := context.WithCancel(ctx)
	t := &applyRun{c: c, pod: pod, m: m, images: make(map[neededImage]*fetch)}
	if makesPod(plan) {
		t.started = &startedPod{Pod: runtime.Pod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}}
	} else {
		c.facts.needLists(pod.UID)
	}
	defer cancel() // fetches without a waiter
	t.prefetch(ctx, plan)
	defer t.releaseSlot(false)
	for len(plan) > 0 {
		n := 1
		if plan[0].Type == runtime.KillContainer {
			for n < len(plan) && plan[n].Type == runtime.KillContainer {
				n++
			}
			t.killContainers(ctx, plan[:n])
		} else if plan[0].Type == runtime.KillSandbox && t.isUnanswered() {
			break // its containers would end without their grace period
		} else if err := t.do(ctx, plan[0]); err != nil {
			t.fail("", sandboxFailure(err))
			break
		}
		plan = plan[n:]
	}
	// What throughput is measured by are whole starts that worked.
	t.releaseSlot(t.made && !t.yieldedSlot && len(t.failures) == 0)
	if t.started != nil && t.made && len(t.failures) == 0 {
		t.started.at = time.Now()
		c.facts.addStarted(t.started)
	}
	cancel()
	t.wg.Wait() // a pull that ends now changes the runtime too
	return runtime.ApplyResult{Failures: t.failures, Changed: t.changed}
}

// applyRun is one Apply.
type applyRun struct {
	c   *Client
	pod *corev1.Pod
	m   runtime.RunOptions

	wg          sync.WaitGroup // of fetches
	images      map[neededImage]*fetch
	ring        images.Keyring
	slot        slot
	ticket      uint64
	yieldedSlot bool  // the slot was given back in the middle
	unresized   error // why no further container is resized: another one may get what this one was to give up
	unrestarted error // why no container is started: one that all are restarted for still runs

	mu         sync.Mutex // guards the next three
	failures   map[string]runtime.Failure
	changed    bool
	unanswered bool // the runtime has not answered the stop of a container

	started       *startedPod     // nil: there is more of the pod than what this Apply makes
	sandbox       runtime.Sandbox // once known
	made          bool            // the sandbox, by this Apply
	reported      bool            // that it is ready
	sandboxConfig *v1.PodSandboxConfig
}

func (t *applyRun) fail(container string, f runtime.Failure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failures == nil {
		t.failures = make(map[string]runtime.Failure)
	}
	t.failures[container] = f
}

// failed reports whether an action of that container failed. Back-offs are no
// failures.
func (t *applyRun) failed(container string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failures[container].Err != nil
}

// isUnanswered reports whether the runtime has not answered the stop of a container: it may be
// away or overloaded, and the next sync tries it again.
func (t *applyRun) isUnanswered() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unanswered
}

func (t *applyRun) markChanged() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed = true
}

// acquireSlot makes sure that the Apply has a slot of the limiter. Only what keeps the
// machine busy is done with one; whatever merely waits gives it back first.
func (t *applyRun) acquireSlot(ctx context.Context) error {
	if t.slot.isAcquired() {
		return nil
	}
	t.yieldedSlot = t.yieldedSlot || t.ticket != 0
	got, err := t.c.starts.acquire(ctx, t.ticket)
	if err != nil {
		return err
	}
	t.slot, t.ticket = got, got.ticket
	return nil
}

// releaseSlot gives the slot back. started says that the pod's start is complete.
func (t *applyRun) releaseSlot(started bool) {
	t.slot.release(started)
	t.slot = slot{}
}

// do carries out one action. An error means that nothing further can be done.
func (t *applyRun) do(ctx context.Context, a runtime.Action) error {
	switch a.Type {
	case runtime.Wait:
		if a.Reason == runtime.ReasonCrashLoop {
			t.event(a.Container, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container "+a.Container)
		}
		t.fail(a.Container, runtime.Failure{Reason: a.Reason, Message: a.Message, Until: a.Until})
	case runtime.RemoveContainer:
		t.markChanged()
		if err := t.c.RemoveContainer(ctx, a.ID); err != nil {
			t.fail(a.Container, runtime.Failure{Reason: "RemoveContainerError", Message: err.Error(), Err: err})
		}
	case runtime.KillSandbox:
		t.markChanged()
		if err := t.c.killSandbox(ctx, t.pod, a.ID, a.Reason); err != nil && !t.leaves(a.ID, err) {
			return &reasonError{"KillPodSandboxError", err}
		}
	case runtime.CreateSandbox:
		err := t.createSandbox(ctx, a)
		if err != nil {
			t.emitFailure(ctx, "", "FailedCreatePodSandBox", err)
		}
		return err
	case runtime.StartContainer:
		if t.failed(a.Container) {
			return nil // the previous container of that name could not be killed or removed
		}
		if t.unrestarted != nil && a.ContainerType != runtime.Ephemeral {
			t.fail(a.Container, killFailure(t.unrestarted))
			return nil
		}
		if err := t.needSandbox(ctx); err != nil {
			return err
		}
		if err := t.startContainer(ctx, a); err != nil {
			t.fail(a.Container, containerFailure(err))
		}
	case runtime.UpdateResources:
		err := t.unresized
		if err == nil {
			if err = t.updateResources(ctx, a); err != nil {
				t.unresized = fmt.Errorf("not resized, because container %s could not be resized", a.Container)
			}
		}
		if err != nil {
			t.fail(a.Container, runtime.Failure{Reason: "ResizeContainerError", Message: err.Error(), Err: err})
		}
	default:
		t.fail(a.Container, runtime.Failure{
			Reason: "UnknownAction", Message: a.Type.String(), Err: fmt.Errorf("%v: %w", a.Type, runtime.ErrUnsupported),
		})
	}
	return nil
}

// leaves reports whether a sandbox that cannot be stopped is left behind, for garbage collection to try again: nothing runs in
// it, and the runtime's answer is that it cannot clean up. That may stay so: after a loss of power, containerd may lack what it
// needs to release the network of a pod, and the pod would never run again.
func (t *applyRun) leaves(id string, err error) bool {
	if !isRefusal(err) || len(t.failures) > 0 {
		return false
	}
	known := t.c.facts.of(t.pod.UID)
	s := known.sandbox(id)
	if s == nil || s.State != runtime.SandboxNotReady {
		return false
	}
	t.event("", corev1.EventTypeWarning, "FailedKillPod", "the old sandbox is left behind: "+err.Error())
	t.c.logPod(slog.LevelWarn, t.pod, "sandbox not stopped and left behind", sandboxID(id), logattr.Err(err))
	return true
}

// spec returns the container of that name, or nil.
func (t *applyRun) spec(name string) *corev1.Container { return runtime.ContainerSpec(t.pod, name) }

// reasonError is an error with the word for it that statuses use.
type reasonError struct {
	reason string
	error
}

func (r *reasonError) Unwrap() error { return r.error }

// withReason gives an error a reason if it has none.
func withReason(reason string, err error) error {
	_, named := errors.AsType[*reasonError](err)
	_, pull := errors.AsType[*images.PullError](err)
	if named || pull {
		return err
	}
	return &reasonError{reason, err}
}

func sandboxFailure(err error) runtime.Failure { return failure("CreatePodSandboxError", err) }

func containerFailure(err error) runtime.Failure { return failure("RunContainerError", err) }

func failure(reason string, err error) runtime.Failure {
	f := runtime.Failure{Reason: reason, Message: err.Error(), Err: err}
	if r, ok := errors.AsType[*reasonError](err); ok {
		f.Reason = r.reason
	}
	if p, ok := errors.AsType[*images.PullError](err); ok {
		f.Reason, f.Until = p.Reason, p.Until
		if p.BackOff {
			f.Err = nil
		}
	}
	return f
}
