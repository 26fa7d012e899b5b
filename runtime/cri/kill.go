package cri

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Kill ends every container of the pod as it was seen, then stops its
// sandboxes. pod may be a stand-in that has only a name, for a pod of which
// nothing but the runtime knows.
func (c *Client) Kill(ctx context.Context, pod *corev1.Pod, seen runtime.Pod, e runtime.Ending) error {
	var wg sync.WaitGroup
	errs := make([]error, len(seen.Containers))
	for i := range seen.Containers {
		ct := &seen.Containers[i]
		if ct.State == runtime.Exited {
			continue
		}
		wg.Go(func() { errs[i] = c.end(ctx, pod, ct, e.Grace) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, s := range seen.Sandboxes {
		if s.State == runtime.SandboxReady {
			errs = append(errs, c.stopSandbox(ctx, s.ID))
		}
	}
	return errors.Join(errs...)
}

// end runs a container's preStop hook and stops it, both within grace.
func (c *Client) end(ctx context.Context, _ *corev1.Pod, ct *runtime.Container, grace time.Duration) error {
	return c.stopContainer(ctx, ct.ID, grace)
}

func (t *turn) killContainers(ctx context.Context, actions []runtime.Action) {
	known := t.c.facts.of(t.pod.UID)
	t.touched()
	var wg sync.WaitGroup
	for _, a := range actions {
		wg.Go(func() {
			ct := runtime.Container{ID: a.ID, Name: a.Container}
			for _, k := range known.containers {
				if k.ID == a.ID {
					ct = k
				}
			}
			if err := t.c.end(ctx, t.pod, &ct, 30*time.Second); err != nil {
				t.fail(a.Container, runtime.Failure{Reason: "KillContainerError", Message: err.Error(), Err: err})
			}
		})
	}
	wg.Wait()
}

// graceOfPod is how long a pod's containers may take to end.
func graceOfPod(pod *corev1.Pod) time.Duration { return podspec.GracePeriod(pod) }
