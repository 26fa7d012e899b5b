package podsync

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// currentInjections returns the hashes of what the running containers of a pod would get
// now. Those of other containers are not known before they are created.
func (s *Syncer) currentInjections(ctx context.Context, pod *corev1.Pod, observed runtime.Pod) map[string]string {
	if len(s.cfg.Injectors) == 0 {
		return nil
	}
	running := map[string]bool{}
	for i := range observed.Containers {
		if c := &observed.Containers[i]; c.State == runtime.Running {
			running[c.Name] = true
		}
	}
	hashes := map[string]string{}
	for c := range podspec.Containers(pod) {
		hashes[c.Name] = runtime.UnknownInjection
		if !running[c.Name] {
			continue
		}
		injection, err := s.inject(ctx, pod, c, true)
		if err != nil {
			s.cfg.Logger.Debug("injection of a running container unknown", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
			continue
		}
		hashes[c.Name] = injection.Hash()
	}
	return hashes
}

// inject returns what all Injectors give a container together.
func (s *Syncer) inject(ctx context.Context, pod *corev1.Pod, c *corev1.Container, running bool) (runtime.Injection, error) {
	var total runtime.Injection
	for _, i := range s.cfg.Injectors {
		if err := safe.Call(s.cfg.Logger, "inject into pod "+podspec.FullName(pod), func() error {
			injection, err := i.Inject(ctx, pod, c, running)
			if err == nil {
				total, err = total.Merge(injection)
			}
			return err
		}); err != nil {
			return runtime.Injection{}, err
		}
	}
	return total, nil
}

// setInjection sets the functions that the runtime calls for each container it creates.
func (s *Syncer) setInjection(opts *runtime.RunOptions, pod *corev1.Pod) {
	if len(s.cfg.Injectors) == 0 {
		return
	}
	opts.Inject = func(ctx context.Context, c *corev1.Container) (runtime.Injection, error) {
		return s.inject(ctx, pod, c, false)
	}
	opts.PreStart = func(ctx context.Context, container string) error {
		for _, i := range s.cfg.Injectors {
			starter, ok := i.(PreStarter)
			if !ok {
				continue
			}
			if err := safe.Call(s.cfg.Logger, "prepare the start of a container of pod "+podspec.FullName(pod), func() error {
				return starter.PreStart(ctx, pod, container)
			}); err != nil {
				return err
			}
		}
		return nil
	}
}

// releaseInjections frees what the Injectors have set aside for a pod.
func (s *Syncer) releaseInjections(uid types.UID) error {
	var errs []error
	for _, i := range s.cfg.Injectors {
		if r, ok := i.(Releaser); ok {
			errs = append(errs, safe.Call(s.cfg.Logger, "release what was injected", func() error { return r.Release(uid) }))
		}
	}
	return errors.Join(errs...)
}
