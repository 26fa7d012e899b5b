package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// restartDelay is the time between the end of a function and its next call.
const restartDelay = time.Second

// function is what a pod runs. It should return soon after ctx is done.
type function func(ctx context.Context, attempt uint32) error

// functions is a runtime that runs functions as pods.
type functions struct {
	code     map[string]function // by image
	onReturn func(types.UID)     // called when a function has returned

	mu    sync.Mutex // guards the fields below
	out   io.Writer
	calls map[types.UID]*call // the newest of each pod
}

var (
	_ podworkers.Syncer    = (*functions)(nil)
	_ podworkers.Inspector = (*functions)(nil)
)

// call is a function that runs or has returned. functions.mu guards endTime and
// err.
type call struct {
	pod       *corev1.Pod
	attempt   uint32
	startTime time.Time
	stop      context.CancelFunc
	done      chan struct{} // closed when the function has returned
	endTime   time.Time     // zero while it runs
	err       error
}

func newFunctions(out io.Writer) *functions {
	return &functions{out: out, calls: map[types.UID]*call{}, code: map[string]function{
		"server": func(ctx context.Context, _ uint32) error { <-ctx.Done(); return nil },
		"job":    func(context.Context, uint32) error { return nil },
		"flaky": func(_ context.Context, attempt uint32) error {
			if attempt < 2 {
				return errors.New("not yet")
			}
			return nil
		},
	}}
}

// Sync implements podworkers.Syncer. It calls the pod's function if it should run
// and does not.
func (f *functions) Sync(ctx context.Context, pod *corev1.Pod, observed runtime.Pod) (runtime.SyncResult, error) {
	last := observed.LatestContainer(pod.Spec.Containers[0].Name)
	if last == nil {
		return runtime.SyncResult{}, f.start(ctx, pod, 0)
	}
	if last.State == runtime.Running {
		return runtime.SyncResult{Unchanged: true}, nil
	}
	policy := pod.Spec.RestartPolicy
	if policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && last.ExitCode == 0 {
		return runtime.SyncResult{Terminal: true, Unchanged: true}, nil
	}
	if due := last.Finished.Add(restartDelay); time.Now().Before(due) {
		return runtime.SyncResult{RequeueAt: due, Unchanged: true}, nil
	}
	return runtime.SyncResult{}, f.start(ctx, pod, last.Attempt+1)
}

// Terminate implements podworkers.Syncer. It cancels the context of the function
// and waits for it, for the grace period at most.
func (f *functions) Terminate(ctx context.Context, pod *corev1.Pod, _ runtime.Pod, t runtime.Termination) error {
	f.mu.Lock()
	c := f.calls[pod.UID]
	f.mu.Unlock()
	if c == nil {
		return nil
	}
	c.stop()
	late := time.NewTimer(t.GracePeriod)
	defer late.Stop()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late.C:
		return fmt.Errorf("pod %s still runs %v after its context was cancelled", pod.Name, t.GracePeriod) // goroutines cannot be killed
	}
}

// Finish implements podworkers.Syncer. It forgets the pod.
func (f *functions) Finish(_ context.Context, pod *corev1.Pod, _ runtime.Termination) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.calls, pod.UID)
	return nil
}

// IsRunning implements podworkers.Inspector.
func (f *functions) IsRunning(uid types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls[uid]
	return c != nil && c.endTime.IsZero()
}

// GetNewerThan implements podworkers.Inspector. The runtime's own memory is always
// up to date.
func (f *functions) GetNewerThan(_ context.Context, uid types.UID, _ time.Time) (runtime.Pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := runtime.Pod{UID: uid, ObservedAt: time.Now()}
	c := f.calls[uid]
	if c == nil {
		return p, nil
	}
	p.Namespace, p.Name = c.pod.Namespace, c.pod.Name
	main := &c.pod.Spec.Containers[0]
	observed := runtime.Container{Name: main.Name, Image: main.Image, Attempt: c.attempt, State: runtime.Running, Started: c.startTime}
	if !c.endTime.IsZero() {
		observed.State, observed.Finished = runtime.Exited, c.endTime
		if c.err != nil {
			observed.ExitCode, observed.Message = 1, c.err.Error()
		}
	}
	p.Containers = []runtime.Container{observed}
	return p, nil
}

// start calls the pod's function in its own goroutine, which outlives the sync that
// starts it.
func (f *functions) start(ctx context.Context, pod *corev1.Pod, attempt uint32) error {
	code, ok := f.code[pod.Spec.Containers[0].Image]
	if !ok {
		return fmt.Errorf("function %q not found", pod.Spec.Containers[0].Image)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &call{pod: pod, attempt: attempt, startTime: time.Now(), stop: stop, done: make(chan struct{})}
	f.mu.Lock()
	f.calls[pod.UID] = c
	f.printf(pod.UID, "starts, attempt %d", attempt)
	f.mu.Unlock()
	go func() {
		defer stop()
		err := code(ctx, attempt)
		f.mu.Lock()
		c.endTime, c.err = time.Now(), err
		f.printf(pod.UID, "returns %v", err)
		f.mu.Unlock()
		close(c.done)
		f.onReturn(pod.UID)
	}()
	return nil
}

// phaseChanged is a hook of podworkers.
func (f *functions) phaseChanged(uid types.UID, from, to podworkers.Phase, why podworkers.Cause) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.printf(uid, "%v -> %v: %v", from, to, why)
}

// printf prints a line. f.mu is held.
func (f *functions) printf(uid types.UID, format string, args ...any) {
	fmt.Fprintf(f.out, "%-6s %s\n", uid, fmt.Sprintf(format, args...))
}
